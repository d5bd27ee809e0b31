"""Torch's side of collect(): pools that allocate from ranges, and when torch empties them.

The order of calls is torch's, whose ways are not documented; docs/adr/0011-collect.md has them.
"""

from __future__ import annotations

import sys
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import from_native

if TYPE_CHECKING:
    from ._collect import Context

Id = tuple[int, int]  # torch's, of a pool

NEEDED = (
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_cudaCachingAllocator_raw_alloc",
    "_cuda_cudaCachingAllocator_raw_delete",
    "_cuda_customAllocator",
    "_cuda_emptyCache",
    "_cuda_endAllocateToPool",
    "_cuda_memorySnapshot",
    "_cuda_releasePool",
)

lock = threading.Lock()  # of the two below, and of who gets whose room
of_range: dict[int, Id] = {}  # the pool in each range that may have memory
owners: dict[int, Context] = {}  # the context of each open range


def _core() -> Any:
    return _native._core


def _torch() -> Any:
    return sys.modules["torch"]


# ---- what a context calls ----


class Calls:
    """What contexts call as they are entered and left, found once.

    Between other work none of this code is in the processor's caches, and each function and
    attribute on the way takes its time: hence one place for them, and few steps in between.
    """

    __slots__ = (
        "alone",
        "begin",
        "capturing",
        "current",
        "empty",
        "end",
        "go_on",
        "pool",
        "quick_pool",
        "ready",
        "release",
        "reopen",
    )

    def __init__(self) -> None:
        torch, core = _torch(), _core()
        native = torch._C
        functions = core.bridge_CollectAlloc(), core.bridge_CollectFree()
        allocator = native._cuda_customAllocator(*functions)  # it outlives every pool
        # its arguments are those of no version's documentation: see `begin`
        self.quick_pool = partial(native._MemPool, allocator, True, False, False)
        self.pool = partial(torch.cuda.MemPool, allocator)
        self.alone = torch.cuda.device_count() == 1
        self.begin = native._cuda_beginAllocateCurrentThreadToPool
        self.end = native._cuda_endAllocateToPool
        self.release = native._cuda_releasePool
        self.empty = native._cuda_emptyCache
        self.current = native._cuda_getDevice
        self.capturing = native._cuda_isCurrentStreamCapturing
        switches: list[Any] = []
        if not core.bridge_CollectSwitches(id(switches)):
            raise MemoryError
        self.ready, self.reopen, self.go_on = switches


calls: Calls = None  # type: ignore[assignment]  # until `prepare`


def prepare() -> None:
    """Find what contexts call, once torch is known to have it; CUDA has started."""
    global calls
    if calls is None:
        calls = Calls()


# ---- one context ----


def enter(device: int) -> tuple[Id, int]:
    """Return a pool that this thread's allocations on the device go to, and its range.

    The caller holds the lock.
    """
    if _selective is None:
        learn(device)
    if len(of_range) >= _many:
        _forget_ranges()
    call, pool = calls, None
    try:
        short = call.ready(device) or device not in _roomy
        emptied = short and relieve(device)
        pool = begin(device)
        if not emptied and _selective and call.alone:
            call.empty()
        elif not emptied:
            reclaim(device, pool)
        return pool, call.reopen(device) or _first_range(device)
    except BaseException:
        _core().bridge_CollectKeep(0)
        if pool is not None:
            end(device, pool)
        raise


def _first_range(device: int) -> int:
    try:
        opened: int = _core().bridge_CollectBegin(device)
    except RuntimeError as error:
        raise from_native(str(error), ()) from None
    return opened


# ---- one pool ----


def begin(device: int) -> Id:
    """Make a new pool and send this thread's allocations on the device there.

    The pool lives until `end`, and then as long as it has memory. The MemPool object must go while
    the pool has begun: as its last owner it would empty the pool, and before torch 2.14 that
    ends the process if any other pool on the device is in use.
    """
    call = calls
    if not call.alone and call.current() != device:
        with _torch().cuda.device(device):
            return begin(device)
    try:
        owner = call.quick_pool()  # without the way through torch's Python class
    except TypeError:
        owner = call.pool()
    pool: Id = owner.id
    call.begin(device, pool)
    return pool  # the owner goes here


def end(device: int, pool: Id) -> None:
    """Send allocations elsewhere, and let torch give free memory of the pool back."""
    calls.end(device, pool)
    calls.release(device, pool)


# ---- emptying pools ----


def reclaim(device: int, pool: Id) -> None:
    """Take the free memory of earlier contexts out of torch's hands, to use it in the next one.

    `pool` has begun on the device. While a pool is in use, emptying the cache empties just those
    pools that nobody can allocate from; but from torch 2.14 on it empties all there is, which
    costs too much to do it every time.
    """
    if _selective:
        _empty(device, pool)
    elif _is_worth_it(device):
        _empty(device, pool)
        _left[device] = memory(device)[1]


_roomy: set[int] = set()  # devices on which there has been a context, and memory for all it made


def relieve(device: int) -> bool:
    """Empty torch's whole cache on a device that seems short of memory; before a pool begins.

    Up to torch 2.13 that does not happen any more once a pool is in use: torch raises out of memory
    instead. So it happens before the first context, after one that ran out of memory, and after
    torch has emptied its cache itself or the driver has refused memory.

    Returns
    -------
    bool
        Whether it did.
    """
    _roomy.add(device)
    if _selective:
        _empty(device, _torch()._C._graph_pool_handle())
    return bool(_selective)


def ran_out(device: int) -> None:
    """Note that a context has run out of memory."""
    _roomy.discard(device)


def _empty(device: int, pool: Id) -> None:
    """Empty the cache on a device, on others no more than what nobody can allocate from.

    Where a pool has begun on the device, it is no more than that there, too. `pool` is one that the
    others do not know.
    """
    others = _others(device)
    for d in others:
        calls.begin(d, pool)
    try:
        calls.empty()
    finally:
        for d in others:
            end(d, pool)


@cache
def _others(device: int) -> list[int]:
    return [d for d in range(_torch().cuda.device_count()) if d != device]


_many = 16


def _forget_ranges() -> None:
    """Forget the pools of ranges that nothing lies in."""
    global _many
    for range_ in [r for r in of_range if r not in owners and _core().bridge_CollectIdle(r)]:
        del of_range[range_]
    _many = 2 * len(of_range) + 16


_left: dict[int, int] = {}  # device -> bytes in segments after its whole cache was emptied


def _is_worth_it(device: int) -> bool:
    """Report whether so much lies in pools that torch's whole cache may go for it."""
    total = _torch().cuda.get_device_properties(device).total_memory
    return memory(device)[1] > max(int(total) // 8, 2 * _left.get(device, 0))


def memory(device: int) -> tuple[int, int, int]:
    """Return the bytes that ranges have, of them those torch counts, and those that are free."""
    mapped, segments, free = map(int, _core().bridge_CollectMemory(device).split())
    return mapped, segments, free


# ---- what this torch does ----

_selective: bool | None = None  # whether emptying the cache spares torch's own pools


def learn(device: int) -> None:
    """Find out how torch empties its cache while a pool is in use; outside of pools, once."""
    global _selective
    version = tuple(map(int, _torch().__version__.split(".")[:2]))
    _selective = version < (2, 14) and _survives(device) and _survives(device)


def _survives(device: int) -> bool:
    """Try it with a segment of its own, that of a side stream; it stays in torch's cache."""
    torch = _torch()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device).cuda_stream

        def reserved() -> int:
            """Return the bytes torch has from the driver after it had to serve the stream."""
            address = torch._C._cuda_cudaCachingAllocator_raw_alloc(1, stream)
            torch._C._cuda_cudaCachingAllocator_raw_delete(address)
            return int(torch.cuda.memory_reserved(device))

        without = torch.cuda.memory_reserved(device)
        if reserved() == without:
            return False  # others use the stream's segment: it would survive anyway
        pool = begin(device)
        try:
            _empty(device, pool)
            left = torch.cuda.memory_reserved(device)
        finally:
            end(device, pool)
        return reserved() == int(left)


# ---- when torch gives its cache back ----


def watch(device: int) -> None:
    """Make sure to learn when torch gives its cache back: there is memory to give back then.

    The means is a canary: a segment without memory (2 MiB in torch's statistics), free, in a pool
    that nobody can allocate from. torch gives it back together with all else. The caller is in no
    context on the device.
    """
    torch = _torch()
    pool, canary = begin(device), 0
    _core().bridge_CollectArm(device)
    try:
        with torch.cuda.device(device):
            canary = torch._C._cuda_cudaCachingAllocator_raw_alloc(1, 0)
    except RuntimeError:  # out of memory: a limit leaves no room for 2 MiB
        _core().bridge_CollectTrim(device)
    finally:
        _core().bridge_CollectArmed(device)
        end(device, pool)
    if canary:
        torch._C._cuda_cudaCachingAllocator_raw_delete(canary)


# ---- what lies in a pool ----

_stolen: int | None = None  # references that a snapshot takes from each of its arguments


def segments(pool: Id) -> list[Any]:
    """Return what torch knows about the segments of a pool, see `torch.cuda.memory_snapshot`."""
    global _stolen
    snapshot = _torch().cuda.memory_snapshot
    if _stolen is None:
        probe = int("1" * 15)  # a new object, in no pool's id
        holders = [probe] * 4
        before = sys.getrefcount(probe)
        snapshot((probe, probe), include_traces=False)
        _stolen = (before - sys.getrefcount(holders[0])) // 2
        _lend(probe, probe, False)
    _lend(*pool, False)
    found: list[Any] = snapshot(pool, include_traces=False)
    return found


def _lend(*arguments: Any) -> None:
    """Add the references that a snapshot drops without owning them, up to torch 2.14."""
    import ctypes

    for _ in range(_stolen or 0):
        for argument in arguments:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(argument))
