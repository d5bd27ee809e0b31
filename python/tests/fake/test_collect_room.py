"""Free room of contexts, and joining what lies there, with torch's own allocator."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

import pytest
import torch

import goflat
from fake.contexts import (
    MIB,
    check_nothing_left,
    cudart,
    fill,
    mib,
    on_torch,
    physical,
    produce,
    ragged,
    range_of,
    reserved,
    room_of,
)
from goflat import _pools

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


@on_torch()
def test_blocks_that_another_stream_uses_are_left_alone() -> None:
    runtime, side = cudart(), torch.cuda.Stream()
    with goflat.collect():
        a, b = mib(30), mib(30)
    b.record_stream(side)
    runtime.fakecudart_busy(1)
    address = b.data_ptr()
    del b
    with goflat.collect():
        c = mib(30)
    assert c.data_ptr() != address
    assert address not in {lo for _, lo, _ in room_of(a).pieces}
    runtime.fakecudart_busy(0)
    del a, c
    check_nothing_left()


@on_torch()
def test_room() -> None:
    with goflat.collect():
        a, hole, b = mib(2), mib(12), mib(2)
        where = hole.data_ptr()
        del hole
    outside = mib(2)
    room = room_of(a, b)
    assert room.everything
    assert {piece[0] for piece in room.pieces} == {range_of(a)}
    assert any(lo <= where and where + 12 * MIB <= hi for _, lo, hi in room.pieces)
    slack = room.pieces[-1][2] - room.pieces[-1][1]
    assert slack >= 4 * MIB
    taken = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in (a, b)]
    assert not any(lo < end and at < hi for _, lo, hi in room.pieces for at, end in taken)
    assert not room_of(a, outside).everything
    assert room_of(outside).pieces == []
    room.retire()
    for _, lo, hi in room.pieces:
        ctypes.memset(lo, 7, hi - lo)
    assert room_of(a).pieces == []
    room.end()
    assert room_of(a).pieces == room.pieces
    del a, b, outside
    check_nothing_left()


@on_torch()
def test_room_of_an_open_context() -> None:
    with goflat.collect():
        a = mib(2)
        with goflat.collect():
            inner = mib(2)
            rooms = [room_of(a), room_of(inner)]
            assert all(room.pieces for room in rooms)
            found: list[Any] = []
            thread = threading.Thread(target=lambda t=a: found.append(room_of(t).pieces))
            thread.start()
            thread.join()
            assert found == [[]]  # the owner may allocate there at any time
            for room in rooms:
                room.retire()
            b = mib(1)
        c = mib(1)
    assert len({range_of(t) for t in (a, inner, b, c)}) == 4
    pieces = [piece for room in rooms for piece in room.pieces]
    for at in (b.data_ptr(), c.data_ptr()):
        assert not any(lo < at + MIB and at < hi for _, lo, hi in pieces)
    del a, inner, b, c, rooms, room
    check_nothing_left()


@on_torch()
def test_room_is_given_to_one() -> None:
    with goflat.collect():
        a, hole, b = mib(12), mib(12), mib(2)
        del hole
    one, two = room_of(a), room_of(a)
    output = a.data_ptr(), a.data_ptr() + a.nbytes
    unclaim = one.claim(*output)
    assert unclaim != 0
    assert one.claim(id(a), id(a) + 1) == 0
    one.retire()
    with pytest.raises(goflat.DeviceError, match="another thread"):
        two.retire()
    one.end()
    two.retire()
    del one, two  # and with it what it holds
    assert room_of(b).pieces != []
    del a, b
    torch.cuda.empty_cache()
    assert physical() > 0  # under the output
    ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)(unclaim)(*output)
    with goflat.collect():
        pass
    check_nothing_left()


@on_torch()
def test_room_that_went_to_the_driver() -> None:
    with goflat.collect():
        a, b = mib(12), mib(60)  # more than is mapped at a time
    room = room_of(a)
    del b
    torch.cuda.empty_cache()
    with pytest.raises(goflat.DeviceError, match="try again"):
        room.retire()
    room = room_of(a)
    room.retire()
    room.end()
    del a
    check_nothing_left()


@on_torch()
def test_many_rooms_leave_pythons_objects_alone() -> None:
    """Up to torch 2.14 each snapshot drops references that are not its own."""
    for _ in range(300):  # ids that are objects of their own
        with goflat.collect():
            pass
    with goflat.collect():
        a = mib(1)
    pool = _pools.of_range[range_of(a)]
    before = sys.getrefcount(pool[1])
    for _ in range(100):
        room_of(a)
    assert sys.getrefcount(pool[1]) == before
    del a
    check_nothing_left()


@on_torch()
def test_ragged_jobs_are_joined_in_place() -> None:
    for seed in range(10):
        with goflat.collect():
            features = ragged(seed)
        want = [torch.cat([features[k][b].cpu() for k in features]) for b in range(3)]
        torch.cuda.reset_peak_memory_stats()
        level = torch.cuda.memory_stats()["requested_bytes.all.current"], reserved()
        flat = goflat.flatten_(features)
        assert torch.cuda.memory_stats()["requested_bytes.all.peak"] == level[0]
        assert reserved() == level[1]
        torch.cuda.empty_cache()
        with goflat.collect():  # nothing that comes later lies where outputs are
            fill(produce())
        assert all(torch.equal(f.cpu(), w) for f, w in zip(flat, want, strict=True))
        del flat
    check_nothing_left()


@on_torch()
def test_joining_inside_an_open_context() -> None:
    with goflat.collect():
        features = ragged(1)
        want = [torch.cat([features[k][b].cpu() for k in features]) for b in range(3)]
        flat = goflat.flatten_(features)
        later = produce()
        fill(later)
    assert range_of(later[0]) not in {range_of(f) for f in flat}
    assert all(torch.equal(f.cpu(), w) for f, w in zip(flat, want, strict=True))
    del flat, later
    check_nothing_left()
