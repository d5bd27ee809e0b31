"""Gradients on a GPU are those of torch.cat."""

from __future__ import annotations

import pytest
import torch

import goflat
from gpu.support import DEVICE, ROWS, check, check_bits, entries, integers, job, oracle, sleep


def leaves(features: dict[str, list[torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    return {key: [t.clone().requires_grad_() for t in x] for key, x in features.items()}


def floats(dim: int = 0) -> dict[str, list[torch.Tensor]]:
    features = job(ROWS, (3, 4), dim=dim)
    return {key: [torch.rand_like(t) for t in x] for key, x in features.items()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_equal_torch_cats(dim: int, packed: bool) -> None:
    plain = floats(dim % 3)
    mine, theirs = leaves(plain), leaves(plain)
    flat = goflat.flatten(mine, dim=dim, packed=packed)
    want = [torch.cat(c, dim) for c in zip(*theirs.values(), strict=True)]
    weights = [torch.rand_like(t) for t in want]
    for outs in (flat, want):
        sum((out * w).sum() for out, w in zip(outs, weights, strict=True)).backward()
    got = [t.grad.contiguous() for t in entries(mine)]
    check_bits(got, [integers(t.grad.contiguous()) for t in entries(theirs)])


def test_gradcheck() -> None:
    features = [t.double().requires_grad_() for t in entries(floats())]

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        return goflat.cat(list(tensors)) * torch.arange(4.0, dtype=torch.float64, device=DEVICE)

    assert torch.autograd.gradcheck(join, tuple(features))
    assert torch.autograd.gradgradcheck(join, tuple(features))


def test_outputs_may_be_changed_in_place() -> None:
    features = leaves(floats())
    flat = goflat.flatten(features, packed=True)
    for out in flat:
        out.mul_(2)
    sum(out.sum() for out in flat).backward()
    assert all(bool((t.grad == 2).all()) for t in entries(features))


def test_no_grad_and_inference_mode() -> None:
    features = floats()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            flat = goflat.flatten(leaves(features))
            like = torch.cat([features["0"][0], features["1"][0]])
            assert [out.requires_grad for out in flat] == [False, False]
            assert [out.is_inference() for out in flat] == [like.is_inference()] * 2
            check_bits(flat, oracle(features))
    with torch.inference_mode():
        made = floats()
    check(made, goflat.flatten(made))


def test_backward_on_the_stream_of_forward(cuda: None) -> None:
    side = torch.cuda.Stream()
    features = leaves(floats())
    with torch.cuda.stream(side):
        sleep(50)
        scaled = {key: [t * 3 for t in x] for key, x in features.items()}
        flat = goflat.flatten(scaled)
        loss = sum(out.sum() for out in flat)
    loss.backward()
    torch.cuda.synchronize()
    assert all(bool((t.grad == 3).all()) for t in entries(features))
