"""What contexts map and keep, and when it goes back, with torch's own allocator."""

from __future__ import annotations

import pytest
import torch

import goflat
from fake.contexts import (
    MIB,
    OOM,
    SELECTIVE,
    check,
    check_nothing_left,
    core,
    cudart,
    driver,
    fill,
    mapping_calls,
    mib,
    on_torch,
    physical,
    produce,
    range_of,
    reserved,
)
from goflat import _collect, _pools

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


@on_torch()
def test_next_context_takes_the_memory_over() -> None:
    with goflat.collect():  # the first one empties torch's cache
        pass
    cached = mib(100)
    del cached
    other = mib(100, 1)
    del other
    with goflat.collect():
        first = [t.data_ptr() for t in produce()]
    level, memory = reserved(), physical()
    mapping_calls()
    for _ in range(20):
        with goflat.collect():
            addresses = [t.data_ptr() for t in produce()]
        if SELECTIVE:
            assert addresses == first
            assert mapping_calls() == []
            assert reserved() == level
            assert physical() == memory
    if SELECTIVE:
        assert reserved() >= 180 * MIB  # torch kept its own cache,
        assert reserved(1) >= 100 * MIB  # that of the other device, too
    check_nothing_left()


@on_torch()
def test_one_device_and_another_torch() -> None:
    """Where there are no other devices, and where MemPool's base takes other arguments."""
    with goflat.collect():
        first = range_of(mib(1))
    calls = _pools.calls
    calls.alone, calls.quick_pool = True, lambda: int(calls)  # type: ignore[call-overload]
    ids = set()
    for _ in range(5):
        with goflat.collect():
            ids.add(range_of(produce()[3]))
    assert len(ids - {0, first}) == 5
    check_nothing_left()


@on_torch()
def test_pools_do_not_pile_up() -> None:
    cudart().fakecudart_capacity(1 << 30)
    for _ in range(200):
        with goflat.collect():
            produce()
    assert len(_pools.of_range) < 64
    assert reserved() <= 1 << 30
    check_nothing_left()


@on_torch()
def test_empty_cache_gives_kept_memory_back() -> None:
    with goflat.collect():
        produce(40)
    with goflat.collect():  # takes everything over and leaves most of it free
        small = mib(1)
    assert physical() > 200 * MIB
    assert core().bridge_CollectArmed(0) or not SELECTIVE  # else: if a chunk happens to be free
    assert reserved() <= 10 * MIB or not SELECTIVE  # with two that a self-test left
    torch.cuda.empty_cache()
    assert physical() <= 64 * MIB
    assert core().bridge_CollectArmed(0) == 0
    assert goflat.memory() == {"cuda:0": physical() - 2 * MIB}
    del small
    check_nothing_left()
    assert goflat.memory() == {}


@on_torch()
def test_out_of_memory_elsewhere_gives_memory_back() -> None:
    cudart().fakecudart_capacity(600 * MIB)
    with goflat.collect():
        produce(40)
    with goflat.collect():
        small = mib(1)
    large = mib(500)
    assert physical() <= 64 * MIB
    del small, large
    check_nothing_left()


@on_torch()
def test_out_of_memory_inside() -> None:
    driver().fakecuda_limit(300 * MIB)
    with goflat.collect():
        kept = [mib(20), mib(1)]
        with pytest.raises(OOM):
            mib(500)
        more = mib(200)
    want = fill([*kept, more])
    check([*kept, more], want)
    with pytest.raises(OOM), goflat.collect():
        mib(500)
    assert _collect.contexts() == []
    check([*kept, more], want)
    del more
    with goflat.collect():  # whose memory was that of `more`
        mib(200)
    del kept
    check_nothing_left()


@on_torch()
def test_a_memory_fraction_counts() -> None:
    cudart().fakecudart_capacity(1000 * MIB)
    torch.cuda.set_per_process_memory_fraction(0.2)
    for _ in range(5):
        with goflat.collect():
            kept = mib(100)
            with pytest.raises(OOM):
                mib(150)
        with pytest.raises(OOM):
            mib(150)
        del kept
        mib(150)  # what was collected makes room
    with pytest.raises(ZeroDivisionError), goflat.collect():
        mib(190)
        raise ZeroDivisionError
    with goflat.collect():
        mib(190)
    check_nothing_left()


@on_torch()
def test_accumulate_under_a_cap() -> None:
    cudart().fakecudart_capacity(1000 * MIB)
    torch.cuda.set_per_process_memory_fraction(0.3)
    with goflat.collect():
        made = [mib(0.5) for _ in range(400)]
    want = fill(made)
    with pytest.raises(OOM):
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    flat = goflat.cat_(made)
    assert torch.equal(flat.cpu(), torch.cat(want))
    del flat
    check_nothing_left()
