"""Outputs that end in threads, forks, cycles, and with the interpreter."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from goflat import _native
from helpers import child
from helpers.adopting import ROW, Memory, adopt, joined, live, raw

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def drop_in(thread_count: int, things: list[Any]) -> None:
    def drop() -> None:
        while things:
            try:
                things.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads() -> None:
    memory = Memory(rows=1024)
    outs = [joined(memory, 2, 3) for _ in range(200)]
    again = [adopt(memory.address, (5, ROW), [out]) for out in outs]
    things = [*outs, *again, *(out[1:] for out in again)]
    del outs, again
    drop_in(8, things)
    assert (live(), memory.uses()) == (0, 0)


def test_threads_that_make_and_drop() -> None:
    memory = Memory()
    wrong: list[Any] = []
    want = memory.want(0, 5)

    def work() -> None:
        out = joined(memory, 2, 3)
        for _ in range(50):
            out = adopt(memory.address, (5, ROW), [out])
            if out.numpy().tobytes() != want:
                wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (live(), memory.uses()) == (0, 0)


class Managed(ctypes.Structure):
    """DLManagedTensor, the end of it."""

    _fields_ = [
        ("tensor", ctypes.c_char * 48),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def test_dropped_without_the_gil() -> None:
    """As C++ does: ctypes calls functions of this type without the GIL."""
    memory = Memory()
    capsule = torch.utils.dlpack.to_dlpack(joined(memory, 2, 3))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = b"used_dltensor"
    address = pointer(capsule, b"dltensor")
    rename(capsule, name)
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(Managed.from_address(address).deleter)
    assert live() == 1
    thread = threading.Thread(target=deleter, args=(address,))
    thread.start()
    thread.join()
    assert (live(), memory.uses()) == (0, 0)


def test_saved_for_backward_and_dropped_by_autograd() -> None:
    memory = Memory()
    leaf = torch.ones(5, ROW, requires_grad=True)
    loss = (leaf * joined(memory, 2, 3)).sum()
    assert live() == 1
    loss.backward()
    assert (live(), memory.uses()) == (0, 0)


class Phoenix:
    """Comes back when it dies."""

    ashes: ClassVar[list[Any]] = []

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __del__(self) -> None:
        Phoenix.ashes.append(self.thing)


def test_resurrection() -> None:
    memory = Memory()
    entries = memory.entries(2, 3)
    entries[0].phoenix = Phoenix(entries[0])  # type: ignore[attr-defined]
    out = adopt(memory.address, (5, ROW), entries)
    entries.clear()
    gc.collect()
    assert raw(Phoenix.ashes[0]) == memory.want(0, 2)
    Phoenix.ashes.clear()
    out.phoenix = Phoenix(out)  # type: ignore[attr-defined]
    del out
    gc.collect()
    assert (live(), raw(Phoenix.ashes[0])) == (1, memory.want(0, 5))
    Phoenix.ashes.clear()
    gc.collect()
    assert (live(), memory.uses()) == (0, 0)


def test_collections_while_outputs_are_made() -> None:
    memory = Memory()
    made: list[Tensor] = []

    def act(phase: str, info: Any) -> None:
        if len(made) < 30 and phase == "stop":
            made.append(joined(memory, 1, 1))

    gc.callbacks.append(act)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        outs = [joined(memory, 2, 3) for _ in range(10)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(act)
    assert all(raw(out) == memory.want(0, 5) for out in outs)
    made.clear()
    outs.clear()
    assert (live(), memory.uses()) == (0, 0)


CHILD = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import torch
from goflat import _ownership, _streams
from helpers import adopting as t
assert _ownership.meet()
if {slow}:
    _ownership.meet(slow=True)
memory = t.Memory()
out = t.joined(memory, 2, 3)
"""


def in_child(way: str, code: str, *flags: str) -> None:
    slow = way == "by attributes"
    head = CHILD.format(tests=str(child.TESTS), slow=slow)
    child.run(head + code, *flags)


def test_alive_at_exit(way: str) -> None:
    in_child(
        way,
        """
import builtins
builtins.kept = [out, t.adopt(memory.address, (5, 3), [out]), out.numpy(), out[1:]]
torch.kept = builtins.kept[:]
cycle = [out]
cycle.append(cycle)
hold = threading.Event()
threading.Thread(target=lambda kept=t.joined(memory, 1, 1): hold.wait(), daemon=True).start()
""",
        "-X",
        "dev",
        "-W",
        "ignore",
    )


def test_forks(way: str) -> None:
    in_child(
        way,
        """
stop = False
def churn():
    while not stop:
        t.joined(memory, 1, 1)
threads = [threading.Thread(target=churn) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        assert t.raw(out) == memory.want(0, 5)
        assert not _ownership.meet()
        assert _ownership.survey([out], 1)[0].reason == _ownership.UNKNOWN
        assert _streams.under(out)[0] is out
        del out
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for thread in threads: thread.join()
""",
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rounds(memory: Memory, count: int) -> int:
    """Return by how many bytes the process grows while it adopts again and again."""
    before = resident_bytes()
    entries = memory.entries(2, 3)
    for _ in range(count):
        entries = [adopt(memory.address, (5, ROW), entries)]
    del entries
    gc.collect()
    return resident_bytes() - before


def test_no_leak(way: str) -> None:
    memory = Memory()
    count = 100_000 if way == "in place" else 10_000
    rounds(memory, count // 10)
    grown = [rounds(memory, count)]
    while grown[-1] > 500_000:
        assert sum(grown) < 30_000_000, f"grew by {grown} bytes"
        grown.append(rounds(memory, count))
    assert (live(), memory.uses()) == (0, 0)


def failing(memory: Memory, shape: Any, entries: list[Tensor]) -> None:
    with pytest.raises((ValueError, TypeError)):
        adopt(memory.address, shape, entries)


def test_no_leak_on_errors() -> None:
    memory = Memory()
    entries = memory.entries(2, 3)

    for _ in range(3):
        before = resident_bytes()
        for _ in range(2000):
            failing(memory, (0, 3), entries)
            failing(memory, ("a",), entries)
        if resident_bytes() - before < 500_000:
            break
    else:
        raise AssertionError("memory grows")
    del entries
    assert (live(), memory.uses()) == (0, 0)
