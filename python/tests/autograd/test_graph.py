"""The graph that autograd sees: a node for each output, as torch.cat makes it."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import oracle, ragged
from helpers.producers import loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Join = Callable[[Any], Any]

pytestmark = pytest.mark.usefixtures("engine")


def packed(features: Any) -> list[Tensor]:
    return list(goflat.flatten(features, packed=True))


def by_cat(features: Any) -> list[Tensor]:
    return [goflat.cat(list(column)) for column in zip(*features.values(), strict=True)]


WAYS = [goflat.flatten, packed, by_cat]
ways = pytest.mark.parametrize("way", WAYS, ids=["flatten", "packed", "cat"])


def leaves() -> dict[str, list[Tensor]]:
    return {key: [t.abs().requires_grad_() for t in entries] for key, entries in ragged().items()}


def same_gradients(way: Join, run: Callable[[Join, dict[str, list[Tensor]]], Any]) -> None:
    """Assert that `run` gives the gradients and tensors that it gives with torch.cat."""
    got, want = leaves(), leaves()
    results = run(way, got), run(oracle, want)
    if results[0] is not None:
        assert_all_bits(*results)
    for entries, others in zip(got.values(), want.values(), strict=True):
        for t, other in zip(entries, others, strict=True):
            assert (t.grad is None) == (other.grad is None)
            if t.grad is not None and other.grad is not None:
                assert_bits(t.grad, other.grad)


# A batch by itself


@ways
def test_a_batch_goes_back_without_the_others(way: Join) -> None:
    """What the producers of other batches have saved stays; each goes back when it is asked to."""

    def run(join: Join, features: dict[str, list[Tensor]]) -> None:
        made = {key: [t.sigmoid() for t in entries] for key, entries in features.items()}
        for out in join(made):
            out.sum().backward()

    same_gradients(way, run)


@ways
def test_no_hook_of_another_batch_is_called(way: Join) -> None:
    called = []
    made = {key: [t * 2 for t in entries] for key, entries in leaves().items()}
    for entries in made.values():
        for b, t in enumerate(entries):
            t.register_hook(lambda _, b=b: called.append(b))
    way(made)[1].sum().backward()
    assert called == [1, 1, 1]


def test_buffer_and_batches_are_results_by_themselves() -> None:
    def run(join: Join, features: dict[str, list[Tensor]]) -> None:
        made = {key: [t.sigmoid() for t in entries] for key, entries in features.items()}
        if join is oracle:
            columns = zip(*made.values(), strict=True)
            buffer, first = torch.cat([t for c in columns for t in c]), oracle(made)[0]
        else:
            flat = goflat.flatten(made, packed=True)
            assert flat.buffer is not None
            buffer, first = flat.buffer, flat[0]
        loss([buffer, first]).backward()

    same_gradients(goflat.flatten, run)


@ways
def test_gradients_arrive_as_they_are_made(way: Join) -> None:
    """Of two batches with producers of their own, the first is done before the second begins."""
    order: list[str] = []
    made = {"a": [torch.ones(2, 2, requires_grad=True) * 1 for _ in range(2)]}
    for b, t in enumerate(made["a"]):
        t.register_hook(lambda _, b=b: order.append(f"entry {b}"))
    first, second = way(made)
    second = second * 1
    second.register_hook(lambda _: order.append("second"))
    (second.sum() + first.sum() * 1).backward()
    assert set(order) == {"entry 0", "entry 1", "second"}
    assert order.index("entry 1") > order.index("second")


# Gradients


@ways
def test_gradients_of_leaves_share_memory(way: Join) -> None:
    features = {
        "a": [torch.ones(2, 3, requires_grad=True)],
        "b": [torch.ones(1, 3).requires_grad_()],
    }
    (out,) = way(features)
    incoming = torch.rand(3, 3)
    out.backward(incoming)
    for (t,) in features.values():
        assert t.grad is not None
        assert t.grad.untyped_storage().data_ptr() == incoming.untyped_storage().data_ptr()
    assert_bits(features["b"][0].grad, incoming[2:])


INCOMING: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.rand(6, 3),
    "expanded": lambda: torch.tensor(2.0).expand(6, 3),
    "expanded rows": lambda: torch.rand(1, 3).expand(6, 3),
    "transposed": lambda: torch.rand(3, 6).t(),
    "every other": lambda: torch.rand(12, 6)[::2, ::2],
    "part of a storage": lambda: torch.rand(20, 3)[7:13],
    "parameter": lambda: torch.nn.Parameter(torch.rand(6, 3), requires_grad=False),
    "negative": lambda: torch.rand(6, 3, dtype=torch.complex64).conj().imag,
    "inference": lambda: _inference(),
    "another dtype": lambda: torch.rand(6, 3, dtype=torch.float64),
}


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.rand(6, 3)


@ways
@pytest.mark.parametrize("incoming", INCOMING)
def test_gradients_of_any_form(way: Join, incoming: str) -> None:
    torch.manual_seed(0)
    grad = INCOMING[incoming]()

    def gradients(join: Join) -> list[Tensor]:
        features = {k: [torch.ones(n, 3, requires_grad=True)] for k, n in enumerate((1, 0, 3, 2))}
        entries = [t for (t,) in features.values()]
        return list(torch.autograd.grad(join(features), entries, [grad]))

    got, want = gradients(way), gradients(oracle)
    assert_all_bits(got, want)
    shared = [t.untyped_storage().data_ptr() == grad.untyped_storage().data_ptr() for t in want]
    assert [t.untyped_storage().data_ptr() == grad.untyped_storage().data_ptr() for t in got] == (
        shared
    )


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_gradients_along_other_dimensions(dim: int) -> None:
    def gradients(join: Callable[..., Tensor]) -> list[Tensor]:
        shapes = [[2, 3, 4] for _ in range(3)]
        for n, shape in enumerate(shapes):
            shape[dim] = n
        entries = [torch.ones(shape, requires_grad=True) for shape in shapes]
        loss([join(entries, dim)]).backward()
        return [t.grad for t in entries if t.grad is not None]

    assert_all_bits(gradients(goflat.cat), gradients(torch.cat))


@ways
def test_changed_gradients(way: Join) -> None:
    """A hook may change the gradient of an entry in place, and keep it."""

    def run(join: Join, features: dict[str, list[Tensor]]) -> list[Tensor]:
        made = {key: [t * 2 for t in entries] for key, entries in features.items()}
        kept: list[Tensor] = []
        for entries in made.values():
            for t in entries:
                t.register_hook(lambda g: kept.append(g.mul_(3)))
        loss(join(made)).backward()
        return sorted(kept, key=lambda g: float(g.sum()))

    same_gradients(way, run)


@ways
def test_second_gradients_may_be_changed_in_place(way: Join) -> None:
    def run(join: Join, features: dict[str, list[Tensor]]) -> list[Tensor]:
        entries = [t for x in features.values() for t in x]
        firsts = torch.autograd.grad(loss(join(features)), entries, create_graph=True)
        for first in firsts:
            first.mul_(2)
        loss(firsts).backward()
        return list(firsts)

    same_gradients(way, run)


@ways
def test_entries_that_get_no_gradient(way: Join) -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    def run(join: Join, features: dict[str, list[Tensor]]) -> None:
        torch.stack([Nothing.apply(out).sum() for out in join(features)]).sum().backward()

    same_gradients(way, run)


@ways
def test_any_mixture_of_requires_grad(way: Join) -> None:
    for mask in range(1, 64, 5):

        def run(join: Join, features: dict[str, list[Tensor]], mask: int = mask) -> list[Tensor]:
            for e, t in enumerate(t for x in features.values() for t in x):
                t.requires_grad_(bool(mask >> e & 1))
            outs = join(features)
            loss(outs).backward()
            return [torch.tensor([out.requires_grad for out in outs])]

        same_gradients(way, run)


# Modes


@ways
def test_in_place_changes_are_noticed(way: Join) -> None:
    flat = way(leaves())
    before = flat[0]._version
    total = (flat[0] ** 2).sum()
    flat[1].add_(1)
    total.backward(retain_graph=True)
    flat[0].add_(1)
    assert flat[0]._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@ways
@pytest.mark.parametrize("change", ["mul_", "relu_", "slice", "fill_", "detach_", "resize_as_"])
def test_outputs_may_be_changed_in_place(way: Join, change: str) -> None:
    changes: dict[str, Callable[[Tensor], Any]] = {
        "mul_": lambda t: t.mul_(3),
        "relu_": lambda t: t.sub_(1).relu_(),
        "slice": lambda t: t[1:].mul_(2),
        "fill_": lambda t: t.fill_(1),
        "detach_": lambda t: t.detach_(),
        "resize_as_": lambda t: t.t_().mul_(2),
    }

    def run(join: Join, features: dict[str, list[Tensor]]) -> list[Tensor]:
        flat = list(join(features))
        changes[change](flat[0])
        loss(flat).backward()
        return [out.detach() for out in flat]

    same_gradients(way, run)


@ways
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(way: Join, reentrant: bool) -> None:
    def run(join: Join, features: dict[str, list[Tensor]]) -> None:
        names = list(features)

        def body(*entries: Tensor) -> Tensor:
            made = {k: list(entries[2 * n : 2 * n + 2]) for n, k in enumerate(names)}
            return loss([out.exp() for out in join(made)])

        inputs = [t for x in features.values() for t in x]
        checkpoint(body, *inputs, use_reentrant=reentrant).backward()

    same_gradients(way, run)


@ways
def test_hooks_of_saved_tensors_are_not_called(way: Join) -> None:
    def refuse(t: Any) -> Any:
        raise AssertionError("something was saved")

    features = leaves()
    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
        flat = way(features)
    torch.stack([out.sum() for out in flat]).sum().backward()


@ways
def test_anomaly_mode(way: Join) -> None:
    def run(join: Join, features: dict[str, list[Tensor]]) -> None:
        loss(join(features)).backward()

    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        same_gradients(way, run)


@ways
def test_anomaly_mode_names_the_node(way: Join) -> None:
    features = leaves()
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly():
        flat = way(features)
        with pytest.raises(RuntimeError, match=r"CatBackward.* returned nan"):
            flat[0].backward(torch.full_like(flat[0], torch.nan))


@ways
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outside_of_autograd(way: Join, mode: Any) -> None:
    with mode():
        got, want = way(leaves()), oracle(leaves())
        assert_all_bits(list(got), want)
    assert [t.requires_grad for t in got] == [False, False]
    assert [t.is_inference() for t in got] == [t.is_inference() for t in want]


@ways
def test_entries_of_inference_mode_among_others(way: Join) -> None:
    with torch.inference_mode():
        frozen = torch.ones(1, 3)
    leaf = torch.ones(2, 3, requires_grad=True)
    (out,) = way({"a": [leaf], "b": [frozen]})
    out.sum().backward()
    assert_bits(leaf.grad, torch.ones(2, 3))


@ways
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast(way: Join, dtype: torch.dtype) -> None:
    """It changes nothing about entries of one dtype, as with torch.cat."""

    def run(join: Join, features: dict[str, list[Tensor]]) -> list[Tensor]:
        weight = torch.linspace(-1, 1, 9).view(3, 3)
        with torch.autocast("cpu", torch.bfloat16):
            made = {k: [(t @ weight).to(dtype) for t in x] for k, x in features.items()}
            flat = join(made)
        assert all(out.dtype == dtype for out in flat)
        loss([out.float() for out in flat]).backward()
        return [out.detach() for out in flat]

    same_gradients(way, run)


@ways
def test_autocast_does_not_choose_among_dtypes(way: Join) -> None:
    """torch.cat would join bfloat16 and float32 as float32: say so by dtype=."""
    features = {"a": [torch.ones(1, 3, dtype=torch.bfloat16)], "b": [torch.ones(1, 3)]}
    with torch.autocast("cpu", torch.bfloat16):
        assert oracle(features)[0].dtype == torch.float32
        with pytest.raises(goflat.DTypeError, match=r"got torch\.float32|got float32"):
            way(features)
        (out,) = goflat.flatten(features, dtype=torch.float32)
    assert_bits(out, torch.ones(2, 3))


@ways
def test_threads(way: Join) -> None:
    """Whole steps in several threads at once."""
    failed: list[BaseException] = []

    def steps() -> None:
        try:
            for _ in range(20):
                same_gradients(way, lambda join, features: loss(join(features)).backward())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=steps) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@ways
def test_backward_in_another_thread(way: Join) -> None:
    features = leaves()
    total = loss(way(features))
    thread = threading.Thread(target=total.backward)
    thread.start()
    thread.join()
    want = leaves()
    loss(oracle(want)).backward()
    assert_all_bits([t.grad for t in features["2"]], [t.grad for t in want["2"]])


# Lifetime


@ways
def test_nodes_keep_no_tensor_alive(way: Join) -> None:
    entry = torch.ones(2, 3, requires_grad=True) * 1
    (out,) = way({"a": [entry]})
    node = out.grad_fn
    watched = [weakref.ref(entry), weakref.ref(out)]
    del entry, out
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
    assert node is not None


@ways
def test_nothing_is_left_in_a_cycle(way: Join) -> None:
    gc.collect()
    gc.disable()
    try:
        features = leaves()
        flat = way(features)
        watched = [weakref.ref(t) for t in (*flat, *features["0"])]
        loss(flat).backward()
        del features, flat
        assert [ref() for ref in watched] == [None] * 4
    finally:
        gc.enable()


def test_out_is_refused_as_torch_cat_refuses_it() -> None:
    features = leaves()
    outs = [torch.empty_like(t) for t in oracle(features)]
    with pytest.raises(goflat.OwnershipError, match="key '0', batch 0: got an entry that requires"):
        goflat.flatten(features, out=outs)
    with pytest.raises(goflat.OwnershipError, match="an out that requires grad"):
        goflat.flatten(ragged(), out=[t.requires_grad_() for t in outs])
    with torch.no_grad():
        goflat.flatten(features, out=outs)
    assert_all_bits([t.detach() for t in outs], [t.detach() for t in oracle(features)])
