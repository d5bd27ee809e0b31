"""flatten_ with autograd on: what backward needs is copied, all else is written over."""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import goflat
from goflat import _native
from goflat._ownership import ADOPTABLE, HELD, SAVED, SHARED
from helpers import child
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import LOTS
from helpers.jobs import oracle
from helpers.owning import WAYS, asking, reasons
from helpers.producers import FREE, ROWS, SAVING, WIDTH, loss, parameter, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

OPERATIONS = {**FREE, **SAVING}


def gradient(operation: Callable[[Tensor], Tensor], join: Callable[[Any], Any]) -> Tensor:
    torch.manual_seed(0)
    x = parameter()
    made = [operation(x)]
    loss(join(split(made))).backward()
    assert x.grad is not None
    return x.grad


def consume(features: Any) -> goflat.Flat[Tensor]:
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert features == {}
    return flat


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_those_of_torch_cat(name: str) -> None:
    assert_bits(gradient(OPERATIONS[name], consume), gradient(OPERATIONS[name], oracle))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_who_holds_a_result(name: str, way: str) -> None:
    with asking(way):
        x = parameter()
        made = [OPERATIONS[name](x)]
        alone = reasons([made.pop()])
        made = [OPERATIONS[name](x)]
        features = split(made)
        parts = [features["a"].pop(0), features["a"].pop(0), *features.pop("b")]
        assert reasons(parts) == [ADOPTABLE if name in FREE else SHARED] * 4
        assert alone == [ADOPTABLE if name in FREE else SHARED]


@pytest.mark.parametrize("name", OPERATIONS)
def test_in_place_where_backward_does_not_need_it(name: str) -> None:
    x = parameter()
    made = [OPERATIONS[name](x)]
    nbytes = made[0].numel() * made[0].element_size()
    plan = consume(split(made)).plan
    got = plan.strategy, plan.growth
    # Entries that are held are not given back, so nothing is for the other outputs.
    assert got == (("inplace", 0) if name in FREE else ("stream", nbytes))


def test_a_plan_says_what_it_will_be() -> None:
    made = [torch.sigmoid(parameter())]
    plan = goflat.plan(split(made), inplace=True)
    assert "torch holds it" in plan.why("a", 0) or "storage is used" in plan.why("a", 0)
    made = [parameter() + 1]
    assert goflat.plan(split(made), inplace=True).growth == 0


def test_saved_outputs_are_as_they_were() -> None:
    x = parameter()
    made = [torch.exp(x)]
    node = made[0].grad_fn
    assert node is not None
    want = made[0].detach().clone()
    consume(split(made))[0].data.fill_(-1)
    assert_bits(node._saved_result, want)  # type: ignore[attr-defined]


# What else may be done with an entry before


def made_by_adding(then: Callable[[Tensor], Any]) -> tuple[Tensor, list[Tensor], Any]:
    """Return a leaf, what it was added to (the only reference), and what `then` made of that."""
    x = parameter()
    made = [x + 1]
    return x, made, then(made[0])


USES: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "summed": (lambda y: y.sum(), ADOPTABLE),
    "multiplied by a constant": (lambda y: (y * torch.ones(WIDTH)).sum(), ADOPTABLE),
    "multiplied by a weight": (lambda y: (y * torch.ones(WIDTH, requires_grad=True)).sum(), SAVED),
    "squared": (lambda y: (y * y).sum(), SAVED),
    "in a linear layer": (
        lambda y: F.linear(y, torch.ones(2, WIDTH, requires_grad=True)).sum(),
        SAVED,
    ),
    "in a rectifier": (lambda y: torch.relu(y).sum(), ADOPTABLE),
    "retained gradient": (lambda y: y.retain_grad(), ADOPTABLE),
    "hook": (lambda y: y.register_hook(lambda g: g * 2) and None, ADOPTABLE),
    "hook that was removed": (lambda y: y.register_hook(lambda g: g * 2).remove(), ADOPTABLE),
    "hook that holds it": (lambda y: y.register_hook(lambda g: g * y) and None, HELD),
    "hook of its node": (lambda y: y.grad_fn.register_hook(lambda i, o: None) and None, ADOPTABLE),
    "edge": (torch.autograd.graph.get_gradient_edge, ADOPTABLE),
    "view": (lambda y: y[1:], SAVED),
    "detached": (lambda y: y.detach(), SHARED),
    "transposed and summed": (lambda y: y.t().sum(), ADOPTABLE),
    "view that a weight multiplies": (
        lambda y: (y[1:] * torch.ones(WIDTH, requires_grad=True)).sum(),
        SAVED,
    ),
    "gradient taken": (lambda y: torch.autograd.grad(y.sum(), y, retain_graph=True), ADOPTABLE),
    "gradient taken with a graph": (
        lambda y: torch.autograd.grad((y**2).sum(), y, create_graph=True),
        SAVED,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", USES)
def test_who_holds_an_entry_that_was_used(use: str, way: str) -> None:
    then, want = USES[use]
    with asking(way):
        _, made, kept = made_by_adding(then)
        assert reasons([made.pop()]) == [want]
    del kept
    gc.collect()  # a hook that refers to its own tensor is a cycle


@pytest.mark.parametrize("use", USES)
def test_gradients_where_an_entry_was_used(use: str) -> None:
    def run(join: Callable[[Any], Any]) -> Tensor:
        x, made, kept = made_by_adding(USES[use][0])
        total = loss(join(split(made)))
        for part in kept if isinstance(kept, tuple) else (kept,):
            if isinstance(part, torch.Tensor) and part.requires_grad:
                total = total + part.sum()
        (grad,) = torch.autograd.grad(total, x)
        return grad

    assert_bits(run(consume), run(oracle))
    gc.collect()


@pytest.mark.parametrize("pack", ["identity", "copy", "numpy", "on the disk"])
def test_hooks_of_saved_tensors(pack: str, tmp_path: Any) -> None:
    """What a hook keeps may be the tensor's memory, and then counts."""

    def save(t: Tensor) -> Any:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.write_text(json.dumps(t.tolist()))
        return path

    def load(path: Any) -> Tensor:
        return torch.tensor(json.loads(path.read_text()))

    hooks: dict[str, tuple[Any, Any]] = {
        "identity": (lambda t: t, lambda t: t),
        "copy": (lambda t: t.clone(), lambda t: t),
        "numpy": (lambda t: t.detach().numpy(), torch.from_numpy),
        "on the disk": (save, load),
    }

    def run(join: Callable[[Any], Any]) -> Any:
        x = parameter()
        with torch.autograd.graph.saved_tensors_hooks(*hooks[pack]):
            made = [torch.sigmoid(x)]
            flat = join(split(made))
            total = loss(flat)
        total.backward()
        return x.grad, getattr(flat, "plan", None)

    got, plan = run(consume)
    assert_bits(got, run(oracle)[0])
    assert (plan.growth == 0) == (pack in ("copy", "on the disk"))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("operation", ["linear", "sigmoid"])
def test_inside_a_checkpoint(operation: str, reentrant: bool) -> None:
    def run(join: Callable[[Any], Any]) -> Tensor:
        def body(x: Tensor) -> Tensor:
            made = [OPERATIONS[operation](x * 1)]
            return loss(join(split(made)))

        x = parameter()
        checkpoint(body, x, use_reentrant=reentrant).backward()
        assert x.grad is not None
        return x.grad

    assert_bits(run(consume), run(oracle))


@pytest.mark.parametrize("reentrant", [False, True])
def test_results_of_a_checkpoint(reentrant: bool) -> None:
    def run(join: Callable[[Any], Any]) -> Any:
        x = parameter()
        made = [checkpoint(OPERATIONS["linear"], x, use_reentrant=reentrant)]
        flat = join(split(made))
        loss(flat).backward()
        return x.grad, flat

    got, flat = run(consume)
    assert flat.plan.growth == 0
    assert_bits(got, run(oracle)[0])


def test_second_gradients() -> None:
    def run(join: Callable[[Any], Any]) -> Tensor:
        x = parameter()
        made = [x**3]
        (first,) = torch.autograd.grad(loss(join(split(made))), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x)
        return second

    assert_bits(run(consume), run(oracle))


def test_gradients_taken_twice() -> None:
    x = parameter()
    made = [x * 2]
    total = loss(consume(split(made)))
    first = torch.autograd.grad(total, x, retain_graph=True)
    assert_all_bits(torch.autograd.grad(total, x), first)


# Results


def test_results_are_differentiable_and_no_views() -> None:
    made = [parameter() * 2]
    flat = consume(split(made))
    for out in flat:
        assert out.requires_grad
        assert not out.is_leaf
        assert not out._is_view()
        assert type(out.grad_fn).__name__ == "CatBackward"


def test_results_may_be_changed_in_place() -> None:
    def run(join: Callable[[Any], Any]) -> Tensor:
        x = parameter()
        made = [x * 2]
        flat = join(split(made))
        for b, out in enumerate(flat):
            out.mul_(b + 2)[0].zero_()
        loss(flat).backward()
        assert x.grad is not None
        return x.grad

    assert_bits(run(consume), run(oracle))


def test_a_change_of_a_result_that_backward_needs_is_noticed() -> None:
    made = [parameter() * 2]
    flat = consume(split(made))
    total = (flat[0] ** 2).sum() + flat[1].sum()
    before = flat[0]._version
    flat[1].add_(1)  # over the same storage, but not the same tensor
    assert flat[0]._version == before
    flat[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_results_are_consumed_again() -> None:
    def run(join: Callable[[Any], Any]) -> Any:
        x = parameter()
        made = [x * 2]
        flat = list(join(split(made)))
        again = join({"a": [flat.pop(0)], "b": [flat.pop(0)]})
        loss(again).backward()
        return x.grad, again

    got, again = run(consume)
    assert again.plan.growth == 0
    assert_bits(got, run(oracle)[0])


def test_results_that_backward_needs_are_not_consumed_again() -> None:
    def run(join: Callable[[Any], Any]) -> Tensor:
        x = parameter()
        made = [x * 2]
        flat = list(join(split(made)))
        total = loss(flat)  # saves them
        again = join({"a": [flat.pop(0)], "b": [flat.pop(0)]})
        again[0].data.mul_(1)
        (total + loss(again)).backward()
        assert x.grad is not None
        return x.grad

    assert_bits(run(consume), run(oracle))


# Jobs


def test_some_entries_require_no_grad() -> None:
    def run(join: Callable[[Any], Any]) -> Any:
        x = parameter()
        kept = list((x * 2).split([6, 4])), list(torch.ones(7, WIDTH).split([3, 4]))
        features = {"a": [kept[0].pop(0), kept[1].pop(0)], "b": [kept[1].pop(0), kept[0].pop(0)]}
        flat = join(features)
        loss(flat).backward()
        return x.grad, [out.requires_grad for out in flat]

    got, want = run(consume), run(oracle)
    assert_bits(got[0], want[0])
    assert got[1] == want[1] == [True, True]


def test_a_batch_without_any_does_not_either() -> None:
    x = parameter()
    features = {"a": [x * 2, torch.ones(2, WIDTH)], "b": [x * 3, torch.ones(1, WIDTH)]}
    assert [out.requires_grad for out in consume(features)] == [True, False]


@pytest.mark.parametrize("empty", [(0, WIDTH), (0,)])
@pytest.mark.parametrize("first", [False, True])
def test_entries_without_rows(empty: tuple[int, ...], first: bool) -> None:
    """They may be given up before their output is there, and get gradients all the same."""

    def run(join: Callable[[Any], Any]) -> Any:
        x, none = parameter(), [torch.zeros(empty).requires_grad_() for _ in range(2)]
        made = [x * 2]
        rows = list(made.pop().split([6, 4]))
        nothing = [t * 1 for t in none]
        columns = [[rows.pop(0), nothing.pop()], [nothing.pop(), rows.pop()]]
        features = {"a": [columns[0].pop(0), columns[1].pop(0)], "b": [*columns[0], *columns[1]]}
        columns.clear()
        if first:
            features = {"b": features["b"], "a": features["a"]}
        flat = join(features)
        loss(flat).backward()
        return [x.grad, *(t.grad for t in none)]

    assert_all_bits(run(consume), run(oracle))


def test_batches_without_rows() -> None:
    def run(join: Callable[[Any], Any]) -> Any:
        x = torch.zeros(0, WIDTH, requires_grad=True)
        features = {"a": [x * 1, x + 1], "b": [x * 2, x + 2]}
        flat = join(features)
        torch.stack([out.sum() for out in flat]).sum().backward()
        return [x.grad], [out.shape for out in flat]

    got, want = run(consume), run(oracle)
    assert_all_bits(got[0], want[0])
    assert got[1] == want[1]


def test_entries_that_are_held_are_copied_and_get_their_gradients() -> None:
    x = parameter()
    made = [x * 2]
    features = split(made)
    held = features["a"][1]
    want = held.detach().clone()
    flat = consume(features)
    (grad,) = torch.autograd.grad(loss(flat), held)
    assert_bits(held, want)
    assert_bits(grad, (2 * flat[1] * torch.linspace(1, 3, flat[1].numel()).view_as(flat[1]))[:2])


def test_tuples_count_as_held() -> None:
    x = parameter()
    parts = tuple((x * 2).split([6, 4]))
    total = loss(goflat.flatten_({"a": parts}, max_growth=LOTS))
    (grad,) = torch.autograd.grad(total, x, retain_graph=True)
    assert_bits(grad, torch.autograd.grad(loss(oracle({"a": parts})), x)[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outside_of_autograd_nothing_is_recorded(mode: Any) -> None:
    made = [parameter() * 2]
    features = split(made)
    with mode():
        assert not any(out.requires_grad for out in goflat.flatten_(features, max_growth=0))


def test_cat_() -> None:
    def run(join: Callable[[list[Tensor]], Tensor]) -> Tensor:
        x = parameter()
        parts = list((x * 2).split([3, 3, 4]))
        parts.reverse()
        loss([join(parts)]).backward()
        assert x.grad is not None
        return x.grad

    assert_bits(run(lambda parts: goflat.cat_(parts, max_growth=0)), run(torch.cat))


def test_gradcheck() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        made = [x * 2]
        return tuple(consume(split(made)))

    x = torch.randn(ROWS, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_anomaly_mode() -> None:
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        assert_bits(gradient(FREE["linear"], consume), gradient(FREE["linear"], oracle))


def test_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAT_VERIFY", "1")
    assert_bits(gradient(FREE["linear"], consume), gradient(FREE["linear"], oracle))


def test_first_use_where_hooks_keep_what_is_saved() -> None:
    """What the extension learns with is not saved for backward: hooks might keep it elsewhere."""
    code = """
    import torch, goflat
    x = torch.ones(4, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        made = [torch.sigmoid(x)]
        parts = list(made.pop().split([1, 3]))
        print(goflat.cat_(parts, max_growth=0).shape[0])
    """
    assert child.fork(code).strip() == "4"
