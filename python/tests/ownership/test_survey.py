"""The survey changes nothing, and withstands code that runs meanwhile."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from goflat import _native, _ownership
from goflat._ownership import (
    ADOPTABLE,
    HELD,
    LEAF,
    SHARED,
)
from helpers.owning import conv, new, reasons

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_nothing_changes(way: str) -> None:
    entries = [new(3), *new(6, 2).split(2), conv(True), torch.from_numpy(np.ones(3))]
    watches = [weakref.ref(e) for e in entries]

    def counts() -> list[Any]:
        addresses = [torch._C._storage_address(e) for e in entries]  # type: ignore[attr-defined]
        uses = [torch._C._storage_Use_Count(a) for a in addresses]  # type: ignore[attr-defined]
        own = [(sys.getrefcount(entries[i]), entries[i]._use_count()) for i in range(len(entries))]
        return [*uses, *own]

    before = counts()
    for _ in range(3):
        reasons(entries)
    if way == "in place":
        assert counts() == before
    entries.clear()
    assert [watch() for watch in watches] == [None] * len(watches)


def test_nothing_is_collected_while_counts_are_read() -> None:
    """The garbage collector would run finalizers, which may take references."""
    few, many = [new(3)], [new(3) for _ in range(2000)] + list(new(600, 2).split(2))
    phases: list[str] = []
    records = _ownership.array("B", bytes(56 * len(many)))
    address = records.buffer_info()[0]

    def collections(entries: list[Tensor]) -> int:
        phases.clear()
        for _ in range(3):  # the first may meet dispatch keys for the first time
            _native._core.bridge_Survey(id(entries), 1, address)  # type: ignore[union-attr]
        return len(phases)

    gc.callbacks.append(lambda phase, info: phases.append(phase))
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert collections(many) <= collections(few)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()


class Meddler(TorchFunctionMode):
    """Does something when torch is asked whether a tensor requires grad."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.act = act

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__self__", None) is torch.Tensor.requires_grad:
            self.act()
        return func(*args, **(kwargs or {}))


def test_the_list_changes_meanwhile() -> None:
    entries = list(new(6, 2).split(2))
    watch = weakref.ref(entries[2])
    with Meddler(entries.clear):
        assert len(reasons(entries)) == 3
    assert watch() is None


def test_somebody_takes_a_reference_meanwhile() -> None:
    entries, taken = list(new(6, 2).split(2)), []
    with Meddler(lambda: taken.append(entries[0])):
        assert reasons(entries) == [HELD, SHARED, SHARED]


def test_an_interrupt_goes_through() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        raise RuntimeError("no answer")

    entries = list(new(6, 2).split(2))
    with Meddler(interrupt), pytest.raises(KeyboardInterrupt):
        reasons(entries)
    with Meddler(fail):
        assert reasons(entries) == [LEAF] * 3  # in doubt, not adoptable
    assert reasons(entries) == [ADOPTABLE] * 3
    assert _native._core.bridge_Live() == 0  # type: ignore[union-attr]


def test_surveys_inside_surveys() -> None:
    outer, inner = list(new(6, 2).split(2)), list(new(600, 2).split(2))
    answers: list[list[int]] = []

    def ask() -> None:
        if not answers:
            answers.append([])
            answers.append(reasons(inner))

    with Meddler(ask):
        assert reasons(outer) == [ADOPTABLE] * 3
    assert answers[1] == [ADOPTABLE] * 300


def test_threads(way: str) -> None:
    wrong: list[Any] = []

    def ask(seed: int) -> None:
        for i in range(100):
            entries = [new(3 + seed), *new(6, 2).split(2)]
            keep = entries[0] if i % 2 else None
            want = [HELD if i % 2 else ADOPTABLE, *[ADOPTABLE] * 3]
            if (got := reasons(entries)) != want:
                wrong.append((got, want))
            del keep

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [], way


def test_threads_that_meet_for_the_first_time(way: str) -> None:
    """Each thread either waits for what is learnt, or knows it already."""
    _ownership._met.clear()
    answers: list[list[int]] = []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        answers.append(reasons([new(3), *new(6, 2).split(2)]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[ADOPTABLE] * 4] * 8, way


def test_many_entries_at_once(way: str) -> None:
    assert reasons([]) == []
    entries = [part for _ in range(50) for part in new(40, 1).split(1)] + [
        new(1) for _ in range(3000)
    ]
    assert set(reasons(entries)) == {ADOPTABLE}, way
    random.Random(1).shuffle(entries)
    assert set(reasons(entries)) == {ADOPTABLE}, way
    kept = entries[:]
    assert not set(reasons(entries)) & {ADOPTABLE}, way
    assert set(reasons(entries, 1)) == {ADOPTABLE}, way
    del kept


@pytest.mark.slow
def test_time_of_a_survey() -> None:
    entries = [new(8, 16) for _ in range(2048)]
    records = bytearray(56 * len(entries))
    address = _ownership.array("B", records).buffer_info()[0]
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        _native._core.bridge_Survey(id(entries), 1, address)  # type: ignore[union-attr]
        times.append(time.perf_counter_ns() - start)
    assert min(times) / len(entries) < 400
