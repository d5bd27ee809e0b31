"""Outputs over memory that came with entries: what keeps it alive, and when it is given back.

On the CPU the memory of two storages never adjoins. Here it does: entries are views of one buffer
that is no tensor, and the buffer's reference count tells how many of them are still alive.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import pickle
import sys
import threading
import warnings
import weakref
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

import goflat
from goflat import _native, _ownership, _streams
from goflat._ownership import ADOPTABLE, HELD, IS_ADOPTED, OVERLAP, SAVED, SHARED, STRIDED
from helpers import child
from helpers.jobs import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

ROW = 3  # floats
UNCLAIM = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


@pytest.fixture(params=["in place", "by attributes"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make outputs in one of the two ways, and see that none is left."""
    if request.param == "by attributes":
        _ownership.meet(slow=True)
    assert _ownership.meet()
    yield request.param
    if request.param == "by attributes":
        _ownership._met.clear()
    assert _ownership.meet()
    assert live() == 0


def live() -> int:
    return int(_native._core.bridge_LiveAdopted())  # type: ignore[union-attr]


class Memory:
    """A buffer that entries are laid out in, one after the other."""

    def __init__(self, rows: int = 64, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.row_bytes = ROW * dtype.itemsize
        self.buffer = bytearray(rows * self.row_bytes)
        self.first = sys.getrefcount(self.buffer)
        raw = torch.frombuffer(self.buffer, dtype=torch.uint8)
        raw[:] = torch.arange(len(self.buffer)) % (2 if dtype is torch.bool else 127)
        self.address = raw.data_ptr()

    def entry(self, start: int, stop: int) -> Tensor:
        """Return a tensor of its own storage over some rows."""
        part = memoryview(self.buffer)[start * self.row_bytes : stop * self.row_bytes]
        storage = torch.frombuffer(part, dtype=torch.uint8).untyped_storage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some dtypes are half supported
            empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, 0, (stop - start, ROW), (ROW, 1))

    def entries(self, *rows: int) -> list[Tensor]:
        starts = np.cumsum([0, *rows])
        return [self.entry(*map(int, ends)) for ends in pairwise(starts)]

    def uses(self) -> int:
        """Return how many storages over the buffer are alive."""
        gc.collect()
        return sys.getrefcount(self.buffer) - self.first

    def want(self, start: int, stop: int) -> bytes:
        return bytes(self.buffer[start * self.row_bytes : stop * self.row_bytes])


def adopt(
    address: int,
    shape: tuple[int, ...],
    under: list[Tensor],
    like: Tensor | None = None,
    claim: tuple[int, int, Any] = (0, 0, None),
) -> Tensor:
    """Return the output; `foreign` of it tells whether it is one over several storages."""
    lo, hi, function = claim
    unclaim = ctypes.cast(function, ctypes.c_void_p).value if function else 0
    made: list[Tensor] = []
    like = under[0] if like is None else like
    core: Any = _native._core
    try:
        core.bridge_Adopt(address, id(shape), id(like), id(under), lo, hi, unclaim, id(made))
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
    return made[0]


def joined(memory: Memory, *rows: int, **options: Any) -> Tensor:
    """Return an output over entries of some rows each, which are gone."""
    entries = memory.entries(*rows)
    return adopt(memory.address, (sum(rows), ROW), entries, **options)


def raw(t: Tensor) -> bytes:
    bytes_ = torch.empty(0, dtype=torch.uint8)
    start, count = t.storage_offset() * t.element_size(), t.numel() * t.element_size()
    return bytes(bytes_.set_(t.untyped_storage(), start, (count,), (1,)).tolist())


def test_an_output_over_two_storages() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    assert live() == 1
    assert (type(out), out.shape, out.dtype, out.stride()) == (
        torch.Tensor,
        (5, ROW),
        torch.float32,
        (ROW, 1),
    )
    assert (out.is_leaf, out.requires_grad, out._base, out.is_contiguous()) == (
        True,
        False,
        None,
        True,
    )
    assert out.data_ptr() == memory.address
    assert raw(out) == memory.want(0, 5)
    assert memory.uses() == 2
    out.fill_(1)
    assert memory.entry(0, 5).tolist() == [[1.0] * ROW] * 5
    del out
    assert memory.uses() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    memory = Memory(dtype=dtype)
    out = joined(memory, 2, 3)
    assert (out.dtype, out.shape) == (dtype, (5, ROW))
    assert raw(out) == memory.want(0, 5)
    assert _ownership.survey([out], 1)[0].flags & IS_ADOPTED
    del out
    assert memory.uses() == 0


def test_shapes() -> None:
    memory = Memory()
    for shape in ((), (1,), (6,), (2, 1, 3), (1,) * 20 + (6,)):
        out = adopt(memory.address, shape, memory.entries(1, 1))
        assert (out.shape, out.is_contiguous(), out.tolist() is not None) == (shape, True, True)
    out = adopt(memory.address + 4, (5,), memory.entries(1, 1))  # at any element
    assert raw(out) == memory.want(0, 2)[4:]


def test_only_what_lies_under_is_kept() -> None:
    memory = Memory()
    entries = memory.entries(2, 2, 2)
    out = adopt(memory.address, (4, ROW), entries[:2])
    del entries
    assert memory.uses() == 2
    del out


def test_entries_die_at_once() -> None:
    memory = Memory()
    entries = memory.entries(2, 3)
    thing = threading.Event()
    entries[0].attribute = thing  # type: ignore[attr-defined]
    watches = [*map(weakref.ref, entries), weakref.ref(thing)]
    del thing
    out = adopt(memory.address, (5, ROW), entries)
    entries.clear()
    assert [watch() for watch in watches] == [None] * 3
    del out


def test_several_entries_of_one_storage() -> None:
    memory = Memory()
    whole, other = memory.entries(6, 2)
    out = adopt(memory.address, (8, ROW), [*whole.split(2), other, whole[1:3], other])
    del whole, other
    assert memory.uses() == 2
    del out
    assert memory.uses() == 0


# An output inside one storage


def test_an_output_inside_one_storage(way: str) -> None:
    base = torch.arange(24.0).reshape(8, 3)
    entries = list(base.split([2, 6]))
    storage = base.untyped_storage()._cdata
    del base
    out = adopt(entries[1].data_ptr(), (2, ROW), entries)
    assert live() == 0
    assert out.untyped_storage()._cdata == storage
    assert (type(out), out._base, out.storage_offset()) == (torch.Tensor, None, 6)
    assert out.tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]
    entries.clear()
    assert _ownership.survey([out], 1)[0][-2:] == (0, ADOPTABLE), way
    out.resize_(9, ROW)
    assert out[0].tolist() == [6.0, 7.0, 8.0]


def test_an_output_that_does_not_begin_at_an_element() -> None:
    memory = Memory()
    (entry,) = memory.entries(4)
    out = adopt(memory.address + 2, (2, ROW), [entry])
    assert live() == 1
    assert raw(out) == memory.want(0, 4)[2:26]
    del out


def test_an_output_that_goes_beyond_its_storage() -> None:
    """As into what the allocator rounded up."""
    memory = Memory()
    (entry,) = memory.entries(4)
    out = adopt(memory.address + 6, (4, ROW), [entry])
    assert (live(), raw(out)) == (1, memory.want(0, 5)[6:54])
    del out


def test_a_storage_of_another_dtype() -> None:
    entry = torch.arange(6.0)
    like = torch.zeros(1, dtype=torch.int16)
    out = adopt(entry.data_ptr() + 2, (5,), [entry], like)
    assert (out.dtype, live()) == (torch.int16, 0)
    assert raw(out) == raw(entry)[2:12]


def test_inference_tensors() -> None:
    with torch.inference_mode():
        entry = torch.ones(4, ROW)
        inner = adopt(entry.data_ptr(), (2, ROW), [entry])
        assert inner.is_inference()
    outer = adopt(entry.data_ptr(), (2, ROW), [entry])
    assert not outer.is_inference()
    assert outer.requires_grad_().sum().item() == 6
    plain = torch.ones(4, ROW)
    with torch.inference_mode():
        assert adopt(plain.data_ptr(), (2, ROW), [plain]).is_inference()


def test_entries_that_require_grad() -> None:
    leaf = torch.ones(4, ROW, requires_grad=True)
    entry = leaf * 2
    out = adopt(entry.data_ptr(), (2, ROW), [entry])
    assert (out.requires_grad, out.is_leaf, out.grad_fn) == (False, True, None)


# What results live through


def same(a: Any, b: Tensor) -> bool:
    return torch.equal(torch.as_tensor(a), b)


def test_what_results_can_do() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    want = torch.tensor(out.tolist())
    saved = io.BytesIO()
    torch.save(out, saved)
    saved.seek(0)
    assert same(torch.load(saved), want)
    copies = [
        out.clone(),
        out.cpu(),
        copy.copy(out),
        copy.deepcopy(out),
        pickle.loads(pickle.dumps(out)),
    ]
    assert all(same(c, want) for c in copies)
    assert same(out.to(torch.float64).float(), want)
    assert same(torch.empty(5, ROW).copy_(out), want)
    assert same(out.numpy(), want)
    assert same(np.from_dlpack(out).copy(), want)
    assert same(torch.from_dlpack(out), want)
    assert same(torch.cat([out, out])[5:], want)
    assert same(goflat.flatten({"a": [out], "b": [out]})[0][5:], want)
    assert same(torch.stack(out.unbind()), want)
    assert same(out.view(torch.int32).view(torch.float32), want)
    with pytest.raises(RuntimeError, match="resiz"):
        out.resize_(100, ROW)
    assert same(out.resize_(5, ROW), want)
    out.requires_grad_()
    (out * 2).sum().backward()
    assert out.grad is not None
    assert out.grad.tolist() == [[2.0] * ROW] * 5
    del out, copies
    assert memory.uses() == 0


def test_results_in_shared_memory() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    want = torch.tensor(out.tolist())
    out.share_memory_()  # moves it there
    assert same(out, want)
    assert (live(), memory.uses()) == (0, 0)


def test_twins_keep_the_memory() -> None:
    memory = Memory()
    want = memory.want(0, 5)
    for twin in (Tensor_numpy, torch.from_dlpack, np.from_dlpack, lambda t: t[2:], torch.detach):
        made = twin(joined(memory, 2, 3))
        assert (live(), memory.uses()) == (1, 2)
        got = np.ascontiguousarray(made).tobytes()
        assert want.endswith(got)
        del made
        assert (live(), memory.uses()) == (0, 0)


def Tensor_numpy(t: Tensor) -> Any:
    return t.numpy()


# Adopting results again


def surveyed(entries: list[Any]) -> list[tuple[int, int]]:
    return [record[-2:] for record in _ownership.survey(entries)]


def test_results_are_adoptable_again() -> None:
    memory = Memory()
    entries = [joined(memory, 2, 3)]
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    keep: Any = entries[0]
    assert surveyed(entries) == [(IS_ADOPTED, HELD)]
    keep = entries[0].detach()
    assert surveyed(entries) == [(IS_ADOPTED, SHARED)]
    keep = torch.from_dlpack(entries[0])
    assert surveyed(entries) == [(IS_ADOPTED, SAVED)]
    assert surveyed([keep])[0][1] != ADOPTABLE
    del keep
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    entries = list(entries.pop().split(2))
    assert {reason for _, reason in surveyed(entries)} == {ADOPTABLE}
    entries = [entries[0], entries[1][1:], entries[1]]
    assert {reason for _, reason in surveyed(entries)} <= {OVERLAP, SHARED}
    entries = [joined(memory, 2, 2).t()]
    assert surveyed(entries)[0][1] == STRIDED
    entries.clear()


def test_a_foreign_tensor_at_the_same_address_is_no_result() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    twin = [memory.entry(0, 5)]
    assert twin[0].data_ptr() == out.data_ptr()
    assert surveyed(twin)[0][1] == _ownership.FOREIGN
    del out


def test_no_chains() -> None:
    memory = Memory()
    out = joined(memory, 2, 3, 4)
    for _ in range(20):
        out = adopt(memory.address, (9, ROW), [out])
        assert live() == 1
        assert memory.uses() == 3
    out = adopt(memory.address, (5, ROW), [out])
    assert memory.uses() == 2  # nothing lies in the third
    out = adopt(memory.address + 3 * memory.row_bytes, (1, ROW), [out])
    assert (live(), memory.uses()) == (0, 1)
    assert raw(out) == memory.want(3, 4)
    del out
    assert memory.uses() == 0


def test_results_and_entries_together() -> None:
    memory = Memory()
    entries = memory.entries(1, 2, 3, 4)
    out = adopt(memory.address, (3, ROW), entries[:2])
    more = adopt(memory.address, (10, ROW), [*out.split(1), *entries[2:]])
    del entries, out
    assert (live(), memory.uses()) == (1, 4)
    assert raw(more) == memory.want(0, 10)
    del more


def test_two_outputs_over_one_storage() -> None:
    memory = Memory()
    entries = memory.entries(2, 4, 2)
    left = adopt(memory.address, (4, ROW), entries[:2])
    right = adopt(memory.address + 4 * memory.row_bytes, (4, ROW), entries[1:])
    del entries
    assert (live(), memory.uses()) == (2, 3)
    del left
    assert (live(), memory.uses()) == (1, 2)
    assert raw(right) == memory.want(4, 8)
    del right


def test_results_keep_a_storage_that_lies_beside_them() -> None:
    """The planner may ask for it, so that torch's statistics count what an output takes."""
    memory = Memory()
    first, second, third = memory.entries(2, 2, 2)
    out = adopt(memory.address, (3, ROW), [first, second, third])
    del first, second, third
    assert memory.uses() == 3
    again = adopt(memory.address + 6 * memory.row_bytes, (1, ROW), [out])  # none of them lies there
    del out
    assert memory.uses() == 3
    del again


# Claims


def test_claims_end_after_the_memory_was_given_back() -> None:
    memory = Memory()
    told: list[tuple[int, int, int]] = []
    unclaim = UNCLAIM(lambda lo, hi: told.append((lo, hi, memory.uses())))
    out = joined(memory, 2, 3, claim=(7, 2**62, unclaim))
    assert told == []
    del out
    assert told == [(7, 2**62, 0)]
    told.clear()
    out = adopt(memory.address, (1, ROW), memory.entries(4), claim=(1, 2, unclaim))
    assert told == [(1, 2, 1)]  # one of torch's own: no claim is needed
    told.clear()
    with pytest.raises(ValueError, match="at least one byte"):
        adopt(memory.address, (0, ROW), memory.entries(2, 2), claim=(1, 2, unclaim))
    del out
    assert told == []


# Parts


def test_parts() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    for tensor in (out, out[1:], out.detach(), out.view(-1), out.t()):
        parts = _streams.under(tensor)
        assert [raw(part) for part in parts] in (
            [memory.want(0, 2), memory.want(2, 5)],
            [memory.want(2, 5), memory.want(0, 2)],
        )
        assert {part._base for part in parts} == {None}
    uses = memory.uses()
    del parts, tensor
    assert (uses, memory.uses()) == (2, 2)
    assert surveyed([torch.ones(2)]) == [(0, ADOPTABLE)]
    plain = torch.ones(3)
    assert _streams.under(plain) == [plain] or _streams.under(plain)[0] is plain
    meta = torch.ones(3, device="meta")
    assert _streams.under(meta)[0] is meta
    entries = [out]
    del out
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    entries.clear()


def test_a_part_outlives_the_result() -> None:
    memory = Memory()
    parts = _streams.under(joined(memory, 2, 3))
    assert (live(), memory.uses()) == (0, 2)
    del parts


class Stream:
    """Stands in for a stream where there is none."""

    cuda_stream = 0


def test_record_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    seen: list[tuple[int, Any]] = []
    out, plain, stream = joined(memory, 2, 3), torch.ones(2), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    goflat.record_stream([out, plain, np.ones(2)], stream)  # nothing to do on the CPU
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, s: seen.append((t.numel(), s)))
    goflat.record_stream(goflat.flatten({"a": [torch.ones(4, 1)]}), stream)
    goflat.record_stream((out, plain), stream)
    assert sorted(n for n, _ in seen) == [2, 4, 6, 9]
    assert {s for _, s in seen} == {stream}
    with pytest.raises(goflat.DTypeError, match="got object, want a tensor"):
        goflat.record_stream([plain, object()], stream)
    del out


# Bad input


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((0, 3), ValueError),
        ((-1, 3), ValueError),
        ((2**40, 2**40), ValueError),
        ((1,) * 65, ValueError),
        (("a",), TypeError),
        ((2**70,), OverflowError),
    ],
)
def test_bad_shapes(shape: Any, error: Any) -> None:
    memory = Memory()
    with pytest.raises(error):
        adopt(memory.address, shape, memory.entries(2, 2))
    assert (live(), memory.uses()) == (0, 0)


def test_what_is_no_tensor() -> None:
    memory = Memory()
    entries: list[Any] = memory.entries(2, 2)
    for bad in ([*entries, np.ones(3)], [None, *entries], [*entries, 3]):
        with pytest.raises(TypeError, match="torch tensors"):
            adopt(memory.address, (4, ROW), bad, entries[0])
    with pytest.raises(TypeError, match="torch tensors"):
        adopt(memory.address, (4, ROW), entries, np.ones(3))  # type: ignore[arg-type]
    del entries, bad
    assert (live(), memory.uses()) == (0, 0)


# Threads, forks, ends


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
import test_adopt as t
assert t._ownership.meet()
if {slow}:
    t._ownership.meet(slow=True)
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
        assert not t._ownership.meet()
        assert t._ownership.survey([out], 1)[0].reason == t._ownership.UNKNOWN
        assert t._streams.under(out)[0] is out
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
