"""collect() with torch's own allocator: what contexts do, see contexts.py."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from fake.contexts import (
    MIB,
    SELECTIVE,
    check,
    check_nothing_left,
    core,
    driver,
    fill,
    mib,
    on_torch,
    physical,
    produce,
    range_of,
    reserved,
)
from goflat import _collect
from helpers import child

if TYPE_CHECKING:
    from fake.place import Fake

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


@on_torch()
def test_one_range_with_temporaries() -> None:
    before = mib(4)
    with goflat.collect():
        made = produce()
    after = mib(4)
    assert {range_of(t) for t in made} == {range_of(made[0])} != {0}
    assert range_of(before) == range_of(after) == 0
    payload = sum(t.nbytes for t in made)
    extent = max(t.data_ptr() + t.nbytes for t in made) - min(t.data_ptr() for t in made)
    assert extent < 2 * payload
    want = fill(made)
    check(made, want)
    assert torch.cuda.memory_allocated() >= payload
    assert reserved() <= physical() + 40 * MIB <= reserved() + 104 * MIB
    clone = made[3].clone()  # across chunks
    check([clone], want[3:4])
    del made, before, after, clone
    check_nothing_left()


@on_torch()
def test_what_lives_keeps_its_range() -> None:
    with goflat.collect():
        first = produce()
    want = fill(first)
    with goflat.collect():
        second = produce()
    fill(second)
    assert range_of(first[0]) != range_of(second[0])
    del second
    torch.cuda.empty_cache()
    check(first, want)
    one = first.pop(5)
    del first
    torch.cuda.empty_cache()
    assert reserved() <= 20 * MIB
    assert physical() <= 64 * MIB
    check([one], want[5:6])
    del one
    check_nothing_left()


@on_torch()
def test_nested_contexts() -> None:
    with goflat.collect():
        a = mib(1)
        with goflat.collect(0), goflat.collect("cuda:1"):
            b, c = mib(1), mib(1, 1)
            with goflat.collect():
                d = mib(1)
            e = mib(1)
        f, g = mib(1), mib(1, 1)
    ids = [range_of(t) for t in (a, b, c, d, e, f, g)]
    assert len({ids[0], ids[1], ids[2], ids[3], 0}) == 5
    assert ids[4:] == [ids[1], ids[0], 0]
    del a, b, c, d, e, f, g
    check_nothing_left()


@on_torch()
def test_contexts_that_do_not_end_in_order() -> None:
    first, second = goflat.collect(), goflat.collect()
    first.__enter__()
    a = mib(1)
    second.__enter__()
    first.__exit__(None, None, None)
    b = mib(1)
    second.__exit__(None, None, None)
    assert 0 != range_of(a) != range_of(b) != 0
    assert range_of(mib(1)) == 0
    del a, b
    check_nothing_left()


@on_torch()
def test_one_object_used_again_and_as_a_decorator() -> None:
    context: Any = goflat.collect()
    with context:
        a = mib(1)
        with context:
            b = mib(1)
        c = mib(1)
    made: list[torch.Tensor] = []

    @context
    def recursive(depth: int) -> None:
        made.append(mib(1))
        if depth:
            recursive(depth - 1)
        made.append(mib(1))

    recursive(1)
    ids = [range_of(t) for t in (a, b, c, *made)]
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == ids[6] != ids[4] == ids[5]
    assert _collect.contexts() == []
    made.clear()
    del a, b, c
    check_nothing_left()


@on_torch()
def test_threads() -> None:
    found: dict[int, set[int]] = {}
    barrier = threading.Barrier(4)

    def work(n: int) -> None:
        found[n] = set()
        for _ in range(20):
            barrier.wait()
            with goflat.collect(n % 2):
                barrier.wait()
                made = [mib(1 + i, n % 2) for i in range(4)]
                want = fill(made)
                barrier.wait()
                check(made, want)
                found[n] |= {range_of(t) for t in made}
                assert len({range_of(t) for t in made}) == 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    with goflat.collect():
        mine = [mib(1) for _ in range(50)]
    for t in threads:
        t.join()
    ids = [*found.values(), {range_of(t) for t in mine}]
    assert len(set.union(*ids)) == sum(map(len, ids))
    del mine
    check_nothing_left()


@on_torch()
def test_another_stream_waits() -> None:
    side = torch.cuda.Stream()
    with goflat.collect():
        produce()
    lib = driver()
    lib.fakecuda_reset()
    with goflat.collect(), torch.cuda.stream(side):
        produce()
    log = [lib.fakecuda_call(i) for i in range(lib.fakecuda_calls())]
    assert (b"cuStreamSynchronize" in log) == SELECTIVE
    check_nothing_left()


@on_torch()
def test_bad_devices() -> None:
    for device in (2, -1, "cuda:9", "mps", "nonsense", 1.5):
        with pytest.raises(goflat.DeviceError, match="want a CUDA device"), goflat.collect(device):
            raise AssertionError
    for device in ("cpu", torch.device("cpu", 0), "meta"):
        with goflat.collect(device):
            a = mib(1)
        assert range_of(a) == 0
    with goflat.collect(torch.device("cuda")):
        a = mib(1)
    assert range_of(a) != 0
    del a
    check_nothing_left()


@on_torch()
def test_driver_failures() -> None:
    with goflat.collect():
        mib(1)
    check_nothing_left()
    core().bridge_CollectTrim(0)  # the addresses, too
    for _ in range(2):  # it is tried twice
        driver().fakecuda_fail(b"cuMemAddressReserve", 1, 999)
    with pytest.raises(goflat.DeviceError, match="cuMemAddressReserve"), goflat.collect():
        raise AssertionError
    assert _collect.contexts() == []
    for call in (b"cuMemCreate", b"cuMemMap", b"cuMemSetAccess"):
        driver().fakecuda_fail(call, 1, 2)
        with goflat.collect():
            a = mib(1)  # a smaller piece could be had
        assert range_of(a) != 0
        del a
    check_nothing_left()


@on_torch()
def test_a_torch_without_pools() -> None:
    del torch._C._cuda_customAllocator
    with pytest.raises(goflat.DeviceError, match="use an Arena"), goflat.collect():
        raise AssertionError
    with goflat.collect("cpu"):
        pass


@on_torch("expandable_segments:True")
def test_expandable_segments() -> None:
    with goflat.collect():
        made = produce()
    assert {range_of(t) for t in made} == {range_of(made[0])} != {0}
    check(made, fill(made))
    del made
    torch.cuda.empty_cache()
    assert physical() == 0


@on_torch()
def test_fork() -> None:
    context = goflat.collect()
    context.__enter__()
    a = mib(1)
    pid = os.fork()
    if pid == 0:
        with goflat.collect():
            pass
        context.__exit__(None, None, None)
        del a  # its deleter runs in a process without the device's memory
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    context.__exit__(None, None, None)
    check([a], fill([a]))


EXIT = """
import threading, torch, goflat

kept = []

def work():
    context = goflat.collect()
    context.__enter__()
    kept.extend((context, torch.empty(3 << 20, device="cuda")))

thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
"""


def test_exit_with_everything_open(fake: Fake, runtime: str) -> None:
    """The interpreter ends while memory lives and contexts are open, in two threads."""
    fake.run(EXIT, LD_PRELOAD=runtime)


def test_nothing_to_do() -> None:
    """Without a GPU, and without torch."""
    with goflat.collect(), goflat.collect("cpu"):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(goflat.DeviceError, match="want a CUDA device"), goflat.collect(0):
            raise AssertionError
    child.run(
        "import sys; sys.modules['torch'] = None; import goflat\n"
        "with goflat.collect(): assert goflat.cat([[1]][0:0] or [__import__('numpy').ones(2)]).size"
    )
