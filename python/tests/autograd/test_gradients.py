"""Gradients: those of torch.cat, handed out as views."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")

Job = dict[str, list[torch.Tensor]]


def leaves(dtype: torch.dtype = torch.float32) -> Job:
    """Return `ragged()` with random numbers that require grad."""
    torch.manual_seed(0)
    return {
        key: [torch.randn(t.shape, dtype=dtype).requires_grad_() for t in entries]
        for key, entries in ragged().items()
    }


def gradients(features: Job) -> list[torch.Tensor | None]:
    return [t.grad for entries in features.values() for t in entries]


def weights(flat: list[torch.Tensor]) -> torch.Tensor:
    """Return a scalar in which every element counts differently."""
    parts = [(t * torch.arange(t.numel()).view_as(t)).sum() * (b + 1) for b, t in enumerate(flat)]
    return torch.stack(parts).sum()


def test_gradients_are_those_of_torch_cat() -> None:
    got, want = leaves(), leaves()
    weights(goflat.flatten(got)).backward()
    weights(oracle(want)).backward()
    assert_all_bits(gradients(got), gradients(want))


def test_values_are_too_and_outputs_require_grad() -> None:
    features = leaves()
    flat = goflat.flatten(features)
    assert_all_bits([t.detach() for t in flat], [t.detach() for t in oracle(features)])
    assert all(t.requires_grad for t in flat)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_gradcheck(dim: int, packed: bool) -> None:
    def function(*entries: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = {"a": list(entries[:2]), "b": list(entries[2:])}
        flat = goflat.flatten(features, dim=dim, packed=packed)
        return (*flat, flat.buffer) if flat.buffer is not None else tuple(flat)

    torch.manual_seed(0)
    entries = [torch.randn(2, 2, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    torch.autograd.gradcheck(function, entries)
    torch.autograd.gradgradcheck(function, entries)


def test_gradcheck_of_cat() -> None:
    torch.manual_seed(0)
    entries = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (1, 3)]
    torch.autograd.gradcheck(lambda *parts: goflat.cat(parts), entries)
    torch.autograd.gradgradcheck(lambda *parts: goflat.cat(parts), entries)


def test_complex_gradients() -> None:
    a = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
    b = torch.randn(1, 2, dtype=torch.complex128, requires_grad=True)
    torch.autograd.gradcheck(lambda a, b: goflat.cat([a.conj(), b]), (a, b))


def test_double_backward() -> None:
    a = torch.randn(2, 3, requires_grad=True)
    (flat,) = goflat.flatten({"a": [a], "b": [a * 2]})
    (first,) = torch.autograd.grad((flat**3).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    torch.testing.assert_close(second, 6 * a + 8 * 6 * a)


def test_gradients_are_views_of_the_incoming_one() -> None:
    a, b = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    (flat,) = goflat.flatten({"a": [a], "b": [b]})
    incoming = torch.ones(4, 3)
    grads = torch.autograd.grad(flat, (a, b), incoming)
    assert {g.untyped_storage().data_ptr() for g in grads} == {
        incoming.untyped_storage().data_ptr()
    }


def test_only_entries_that_need_a_gradient_get_one() -> None:
    features = leaves()
    features["0"][0].requires_grad_(False)
    flat = goflat.flatten(features)
    weights(flat).backward()
    assert features["0"][0].grad is None
    (gradient,) = torch.autograd.grad(goflat.flatten(features)[1].sum(), features["1"][1])
    assert_bits(gradient, torch.ones(4, 3))


def test_batches_without_entries_that_require_grad_do_not_either() -> None:
    features = ragged()
    features["1"][1].requires_grad_()
    for packed in False, True:
        flat = goflat.flatten(features, packed=packed)
        assert [t.requires_grad for t in flat] == [t.requires_grad for t in oracle(features)]
        assert flat.buffer is None or flat.buffer.requires_grad


def test_backward_through_one_batch_leaves_the_others_without_gradient() -> None:
    features = leaves()
    goflat.flatten(features)[1].sum().backward()
    assert features["0"][0].grad is None
    assert_bits(features["0"][1].grad, torch.ones(1, 3))


def test_batches_may_go_backward_one_after_the_other() -> None:
    features = leaves()
    for batch in goflat.flatten(features):
        batch.sum().backward()
    assert all(g is not None and (g == 1).all() for g in gradients(features))


def test_packed_buffer_is_differentiable_too() -> None:
    features = leaves()
    flat = goflat.flatten(features, packed=True)
    assert flat.buffer is not None
    (flat.buffer.sum() * 2 + flat[0].sum()).backward()
    assert_bits(features["2"][0].grad, torch.full((3, 3), 3.0))
    assert_bits(features["2"][1].grad, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("packed", [False, True])
def test_outputs_may_be_changed_in_place(packed: bool) -> None:
    features = leaves()
    flat = goflat.flatten(features, packed=packed)
    for batch in flat:
        batch.mul_(3)
        batch[0].zero_()
    torch.stack([batch.sum() for batch in flat]).sum().backward()
    assert_bits(features["0"][0].grad, torch.tensor([[0.0] * 3, [3.0] * 3]))


def test_entry_twice_gets_both_gradients() -> None:
    t = torch.zeros(2, 3, requires_grad=True)
    goflat.flatten({"a": [t], "b": [t]})[0].sum().backward()
    assert_bits(t.grad, torch.full((2, 3), 2.0))


def test_legacy_entry_gets_the_gradient_that_torch_gives() -> None:
    def grad_of(join: Any) -> Any:
        empty = torch.empty(0, requires_grad=True)
        join([empty, torch.ones(2, 3, requires_grad=True)]).sum().backward()
        return empty.grad

    assert_bits(grad_of(goflat.cat), grad_of(torch.cat))


def test_no_grad_and_entries_without_grad() -> None:
    with torch.no_grad():
        assert not any(t.requires_grad for t in goflat.flatten(leaves()))
    assert not any(t.requires_grad for t in goflat.flatten(ragged()))


def test_dtype_is_differentiable() -> None:
    features = leaves()
    weights(goflat.flatten(features, dtype=torch.float64)).backward()
    want = leaves()
    weights([t.double() for t in oracle(want)]).backward()
    assert_all_bits(gradients(features), gradients(want))


def test_graph_keeps_no_entry_alive() -> None:
    base = torch.zeros(2, 3, requires_grad=True)
    entry = base * 2
    watch = weakref.ref(entry)
    flat = goflat.flatten({"a": [entry]}, packed=True)
    del entry
    gc.collect()
    assert watch() is None
    flat[0].sum().backward()
    assert_bits(base.grad, torch.full((2, 3), 2.0))


def test_conjugate_and_negative_entries() -> None:
    z = tensor((2, 2), torch.complex64).requires_grad_()
    got = goflat.cat([z.conj(), z])
    assert_bits(got.detach(), torch.cat([z.conj(), z]).detach())


def test_hooks_and_retained_gradients() -> None:
    a = torch.zeros(2, 3, requires_grad=True)
    (flat,) = goflat.flatten({"a": [a]})
    seen = []
    flat.register_hook(lambda g: seen.append(g.shape))
    flat.retain_grad()
    flat.sum().backward()
    assert seen == [(2, 3)]
    assert_bits(flat.grad, torch.ones(2, 3))


def test_module_in_training() -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)])
    x = torch.randn(5, 3)

    def loss(join: Any) -> list[torch.Tensor]:
        layers.zero_grad()
        join([layer(x) for layer in layers]).square().sum().backward()
        return [p.grad.clone() for p in layers.parameters() if p.grad is not None]

    assert_all_bits(loss(goflat.cat), loss(torch.cat))
