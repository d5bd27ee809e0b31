"""Consuming calls on tensors that autograd knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import goflat
from helpers.compare import assert_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    consume,
    parts,
)
from helpers.jobs import oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]


def test_backward_through_consumed_entries() -> None:
    """Outputs of convolutions: their backward needs sizes only."""
    weight = torch.rand(4, 3, requires_grad=True)
    data = [torch.rand(n, 3) for n in (2, 1, 3, 2)]

    def gradient(call: Callable[[Any], Any]) -> Tensor:
        rows = [x @ weight.T for x in data]
        features = {"a": rows[:2], "b": rows[2:]}
        rows.clear()
        weight.grad = None
        sum((out * (b + 1)).pow(2).sum() for b, out in enumerate(call(features))).backward()
        assert weight.grad is not None
        return weight.grad.clone()

    want = gradient(oracle)
    got = gradient(lambda f: goflat.flatten_(f, max_growth=LOTS))
    torch.testing.assert_close(got, want)


def test_backward_where_entries_are_saved() -> None:
    weight = torch.rand(6, 3, requires_grad=True)

    def gradient(call: Callable[[Any], Any]) -> Tensor:
        rows = [torch.relu(weight[:2]).exp(), torch.sigmoid(weight[2:])]
        features = {"a": rows[:1], "b": rows[1:]}
        rows.clear()
        weight.grad = None
        call(features)[0].pow(2).sum().backward()
        assert weight.grad is not None
        return weight.grad.clone()

    assert_bits(gradient(lambda f: goflat.flatten_(f, max_growth=LOTS)), gradient(oracle))


def test_without_grad_mode_non_leaves_are_consumed() -> None:
    weight = torch.rand(6, 3, requires_grad=True)
    rows = list((weight + 1).detach().split([2, 4]))
    with torch.no_grad():
        assert goflat.cat_(rows, max_growth=LOTS).grad_fn is None
    hidden = weight + 1
    loss = (hidden * 1).sum()
    rows = list(hidden.split([2, 4]))
    del hidden
    with torch.no_grad():
        goflat.cat_(rows, max_growth=LOTS)
    loss.backward()
    assert weight.grad is not None
    assert_bits(weight.grad, torch.ones(6, 3))


def test_inference_mode(engine: str) -> None:
    with torch.inference_mode():
        features = parts(ROWS)
        flat = consume(features)
        flat[0].add_(1)
    features = parts(ROWS)
    with torch.inference_mode():
        entries = {key: [t.clone() for t in x] for key, x in features.items()}
    outside = consume(entries)
    outside[0].mul_(1)
    assert not outside[0].is_inference()
