"""What plans say about who holds an entry."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from goflat import _native, _ownership
from goflat._ownership import ADOPTABLE, HELD, NOT_PLAIN, SAVED, SHARED, STORAGE, UNKNOWN, why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

held_globally: Any = None


class Model:
    """Has an attribute."""

    x: Any


class Slotted:
    __slots__ = ("unset", "x")


class Raising:
    """Answers no question."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name}? No.")


def entries() -> list[Tensor]:
    return [torch.ones(3, 2) for _ in range(3)]


def held(ts: list[Tensor]) -> str:
    """Return what is said of the first entry, which `ts` holds for itself."""
    return why(ts[0], HELD, [ts])


def test_variables() -> None:
    ts = entries()
    mine = ts[0]
    assert held(ts).startswith(
        "held by the variable 'mine' of test_variables() at test_holders.py:"
    )
    del mine


def test_loop_variables() -> None:
    ts = entries()
    for t in ts[:1]:
        t.add_(1)
    assert held(ts).startswith("held by the loop variable 't' of test_loop_variables() at ")
    del t
    for _key, other in {"a": ts[0]}.items():
        other.add_(1)
    assert "the loop variable 'other' of" in held(ts)
    del other
    assert "variable" not in held(ts)


def test_variables_of_callers_and_other_threads() -> None:
    ts = entries()

    def inner(argument: Tensor) -> str:
        del argument
        return held(ts)

    kept = ts[0]
    assert "variable 'kept' of test_variables_of_callers" in inner(ts[1])
    del kept
    ready, done = threading.Event(), threading.Event()

    def wait(theirs: Tensor) -> None:
        ready.set()
        done.wait()
        del theirs

    thread = threading.Thread(target=wait, args=ts[:1])
    thread.start()
    ready.wait()
    try:
        assert "variable 'theirs' of wait() at" in held(ts)
    finally:
        done.set()
        thread.join()


def test_variables_of_enclosing_functions() -> None:
    ts = entries()

    def make() -> Callable[[], Any]:
        captured = ts[0]
        return lambda: captured

    function = make()
    assert held(ts) == "held by a variable of an enclosing function"
    del function


def test_generators() -> None:
    ts = entries()

    def run(own: Tensor) -> Iterator[int]:
        yield 1
        del own

    generator = run(ts[0])
    next(generator)
    text = held(ts)
    assert "generator" in text or "variable of run()" in text
    generator.close()


def test_globals() -> None:
    global held_globally
    ts = entries()
    held_globally = ts[0]
    try:
        assert held(ts) == f"held by the global variable 'held_globally' of {__name__}"
    finally:
        held_globally = None


@pytest.mark.parametrize("cls", [Model, Slotted])
def test_attributes(cls: Any) -> None:
    ts = entries()
    owner = cls()
    owner.x = ts[0]
    assert held(ts) == f"held by the attribute 'x' of a {cls.__name__}"
    vars(owner) if cls is Model else None
    assert held(ts) == f"held by the attribute 'x' of a {cls.__name__}"
    del owner


def test_containers() -> None:
    ts = entries()
    for make, text in (
        (lambda t: [1, t, 2], "a list of length 3"),
        (lambda t: (t,), "a tuple of length 1"),
        (lambda t: {"k": t}, "the key 'k' of a dict"),
        (lambda t: {t}, "a set of length 1"),
    ):
        container = make(ts[0])
        assert held(ts) == f"held by {text}"
        del container


def test_names_win_over_containers() -> None:
    ts = entries()
    owner, container = Model(), [ts[0]]
    owner.x = ts[0]
    assert held(ts) == "held by the attribute 'x' of a Model"
    del owner, container


def test_modules_of_torch() -> None:
    ts = entries()
    module = torch.nn.Module()
    module.register_buffer("mean", ts[0])
    assert "'mean'" in held(ts)
    del module


def test_what_nobody_lists() -> None:
    ts = entries()
    assert held(ts).startswith("held by something that Python does not list: ")


def test_storages() -> None:
    ts = entries()
    mine = ts[0].untyped_storage()
    text = why(ts[0], STORAGE, [ts])
    assert text.startswith("its storage object is held by the variable 'mine' of test_storages()")
    del mine


def test_tensors_over_the_same_storage() -> None:
    base = torch.ones(6, 2)
    ts = list(base.split(2))
    text = why(ts[0], SHARED, [ts])
    assert "used by a tensor that is no entry: one of shape (6, 2)" in text
    assert "held by the variable 'base' of test_tensors_over_the_same_storage()" in text
    del base
    ts = entries()
    view = ts[1][:1]
    text = why(ts[1], SAVED, [ts])
    assert "one of shape (1, 2), held by the variable 'view' of" in text
    del view
    assert why(ts[1], SAVED, [ts]).endswith("the base of a view")


def test_other_words() -> None:
    assert why(torch.nn.Parameter(torch.ones(1)), NOT_PLAIN).endswith("(Parameter)")
    for reason in range(UNKNOWN + 1):
        for entry in (torch.ones(2), np.ones(2), None, 3, Raising()):
            text = why(entry, reason)
            assert text
            assert not text.endswith(".")
    assert why(torch.ones(1), 99) == "for an unknown reason"
    assert why(torch.ones(1), -1) == "for an unknown reason"


def test_hostile_holders() -> None:
    ts = entries()

    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items")

        def __len__(self) -> int:
            raise RuntimeError("no length")

    holder = Hostile(x=ts[0])
    assert held(ts)
    raising = Raising()
    object.__setattr__(raising, "x", ts[0])
    assert held(ts)
    del holder, raising


@pytest.mark.skipif(not _native.available(), reason="no extension")
def test_no_reference_is_kept() -> None:
    base = torch.ones(6, 2)
    ts = [*entries(), *base.split(2)]
    del base

    def ask() -> None:
        mine, deep = ts[0], Model()
        deep.x = [mine]
        for reason in range(UNKNOWN + 1):
            for i in range(len(ts)):
                why(ts[i], reason, [ts])

    ask()
    gc.disable()
    try:
        ask()
        counts = [sys.getrefcount(ts[i]) for i in range(len(ts))]
        assert counts == [2] * len(ts)
        assert {record.reason for record in _ownership.survey(ts)} == {ADOPTABLE}
        watches = [weakref.ref(t) for t in ts]
        ts.clear()
        assert [watch() for watch in watches] == [None] * len(watches)
    finally:
        gc.enable()


def test_variables_do_not_change() -> None:
    """Also those of functions that have asked for `locals`, or that are being traced."""
    ts = entries()
    mine, number = ts[0], 3
    mapping = locals()
    held(ts)
    assert mapping["number"] == number == 3
    assert mine is ts[0]
    traced: list[str] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        traced.append(held(ts))
    finally:
        sys.settrace(before)
    assert (mine is ts[0], number) == (True, 3)
    assert traced[0].startswith("held by")
