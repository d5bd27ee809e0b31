"""What somebody holds, in whatever way, never changes."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    answer,
    job,
    new,
    own,
    parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


# Things that hold entry "0", 0 of a job. Each returns what it keeps, how to read the bytes that it
# sees, and words of the reason that plan.why gives.

Held = tuple[Any, "Callable[[], Any]", str]


class Thing:
    """Has an attribute."""


def variable(f: Any) -> Held:
    t = f["0"][0]
    return t, t.clone, "held by"


def attribute(f: Any) -> Held:
    thing = Thing()
    thing.kept = f["0"][0]  # type: ignore[attr-defined]
    return thing, lambda: thing.kept.clone(), "the attribute 'kept' of a Thing"  # type: ignore[attr-defined]


def in_a_list(f: Any) -> Held:
    others = [None, f["0"][0]]
    return others, lambda: others[1].clone(), "held by a list of length 2"  # type: ignore[union-attr]


def in_a_dict(f: Any) -> Held:
    others = {"name": f["0"][0]}
    return others, lambda: others["name"].clone(), "held by the key 'name' of a dict"


def in_a_set(f: Any) -> Held:
    others = {f["0"][0]}
    return others, lambda: next(iter(others)).clone(), "held by a set of length 1"


def closure(f: Any) -> Held:
    t = f["0"][0]

    def read() -> Any:
        return t.clone()

    return read, read, "held by"


def generator(f: Any) -> Held:
    def values(t: Any) -> Iterator[Any]:
        while True:
            yield t.clone()

    running = values(f["0"][0])
    next(running)
    return running, lambda: next(running), "held by"


def view(f: Any) -> Held:
    v = f["0"][0][1:3]
    return v, v.clone, ""


def transposed(f: Any) -> Held:
    v = f["0"][0].t()
    return v, v.clone, ""


def alias(f: Any) -> Held:
    a = f["0"][0].detach()
    return a, a.clone, "storage"


def data(f: Any) -> Held:
    a = f["0"][0].data
    return a, a.clone, "storage"


def storage(f: Any) -> Held:
    s = f["0"][0].untyped_storage()
    return s, lambda: torch.tensor(s.tolist()), "its storage object is held"


def typed_storage(f: Any) -> Held:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = f["0"][0].storage()
        return s, lambda: torch.tensor(s.untyped().tolist()), "its storage object is held"


def inner_list(f: Any) -> Held:
    entries = f["0"]
    return (
        entries,
        lambda: torch.cat([t.reshape(-1) for t in entries]),
        "the list of key '0' is held",
    )


def iterator_of_a_list(f: Any) -> Held:
    it = iter(f["0"])
    return it, lambda: torch.zeros(1), "the list of key '0' is held"


def numpy_twin(f: Any) -> Held:
    a = f["0"][0].numpy()
    return a, lambda: torch.from_numpy(a.copy()), ""


def from_numpy(f: Any) -> Held:
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    f["0"][0] = torch.from_numpy(a)
    return a, lambda: torch.from_numpy(a.copy()), "NumPy"


def frombuffer(f: Any) -> Held:
    b = bytearray(range(48))
    f["0"][0] = torch.frombuffer(b, dtype=torch.float32).view(4, 3)
    return b, lambda: torch.tensor(list(b)), "torch's allocator"


def capsule(f: Any) -> Held:
    c = f["0"][0].__dlpack__()
    return c, lambda: torch.zeros(1), ""


def dlpack_twin(f: Any) -> Held:
    t = torch.from_dlpack(f["0"][0])
    return t, t.clone, ""


def saved_input(f: Any) -> Held:
    f["0"][0] = t = new()
    weight = torch.ones(4, 3, requires_grad=True)
    product = (weight * t).sum()

    def gradient() -> Any:
        (grad,) = torch.autograd.grad(product, weight, retain_graph=True)
        return grad.clone()

    return product, gradient, "torch holds it"


def script_module(f: Any) -> Held:
    module = torch.jit.ScriptModule()
    f["0"][0] = module.kept = new()
    return module, lambda: module.kept.clone(), "cript"


def live_base(f: Any) -> Held:
    base = new(8)
    f["0"][0] = base[2:6]
    return base, base.clone, "storage"


def sibling(f: Any) -> Held:
    """Another view of the storage that is no entry."""
    base = new(8)
    f["0"][0], rest = base[:4], base[4:]
    return rest, rest.clone, "storage"


def hook_of_a_graph(f: Any) -> Held:
    hidden = torch.ones(4, 3, requires_grad=True) * 2
    kept = f["0"][0]
    hidden.register_hook(lambda grad, t=kept: grad + t)
    return hidden, kept.clone, "held by"


def module_buffer(f: Any) -> Held:
    module = torch.nn.Module()
    module.register_buffer("kept", f["0"][0])
    return module, lambda: module.kept.clone(), "held by"  # type: ignore[operator]


def bound_method(f: Any) -> Held:
    method = f["0"][0].clone
    return method, method, "held by"


HOLDERS = (
    *(variable, attribute, in_a_list, in_a_dict, in_a_set, closure, generator, view, transposed),
    *(alias, data, storage, typed_storage, inner_list, iterator_of_a_list, numpy_twin, from_numpy),
    *(frombuffer, capsule, dlpack_twin, saved_input, script_module, live_base, sibling),
    *(hook_of_a_graph, module_buffer, bound_method),
)


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_what_is_held_never_changes(hold: Callable[[Any], Held]) -> None:
    features = job()
    kept, read, words = hold(features)
    before, want = read(), answer(features)
    planned = goflat.plan(features, inplace=True)
    why = planned.why("0", 0)
    assert why.startswith("copied: ")
    assert words in why
    assert f"copied: key '0', batch 0: {why[8:]}" in str(planned)
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert_bits(read(), before)
    assert features == {}
    for out in flat:
        out.fill_(7)  # results are nobody else's either
    assert_bits(read(), before)
    del kept


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_the_others_are_still_consumed(hold: Callable[[Any], Held]) -> None:
    """A key of its own storage moves in place beside a key with an entry that is held."""
    features = {"0": [new(2, 8), new(0, 9)], "1": parts([[4, 6]])["0"]}
    features["0"][0] = own((4, 3), torch.float32, 3)
    kept, read, _ = hold(features)
    before, want = read(), answer(features)
    assert goflat.plan(features, inplace=True).why("1", 0).startswith(("adopted", "given up"))
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_bits(read(), before)
    del kept


def test_errors_and_warnings_name_holders() -> None:
    features = {"a": [new()], "b": [new(2)]}
    mine = features["a"][0]
    with pytest.raises(goflat.MemoryLimitError, match=r"the variable 'mine' of test_errors_and_wa"):
        goflat.flatten_(features, max_growth=0)
    with pytest.raises(
        goflat.GrowthWarning, match="copied: key 'a', batch 0: held by the variable"
    ):
        goflat.flatten_(features)
    for _ in features["a"]:
        pass
    del mine
    for last in features["b"]:
        assert last is not None
    with pytest.raises(goflat.GrowthWarning, match="the loop variable 'last' of test_errors"):
        goflat.flatten_(features)


def test_weak_references_hold_nothing() -> None:
    features = job()
    watches = [weakref.ref(t) for entries in features.values() for t in entries]
    assert goflat.flatten_(features, max_growth=0).plan.growth == 0
    assert [watch() for watch in watches] == [None] * 4


def test_a_frame_of_another_thread() -> None:
    features, ready, done = job(), threading.Event(), threading.Event()
    read: list[Tensor] = []

    def hold() -> None:
        mine = features["1"][1]
        ready.set()
        done.wait(30)
        read.append(mine.clone())

    before, want = features["1"][1].clone(), answer(features)
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(30)
    assert "the variable 'mine' of hold()" in goflat.plan(features, inplace=True).why("1", 1)
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    done.set()
    thread.join()
    assert_bits(read[0], before)
