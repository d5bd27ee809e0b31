"""collect() with torch's own allocator: torch.cuda runs on the fake driver, through cudart.c.

Memory and statistics are real, work on it is not: there are no streams to wait for.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _collect, _native, _pools, _room
from helpers import child
from helpers.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake.place import Fake

MIB = 1 << 20
OOM = torch.OutOfMemoryError
SELECTIVE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


@pytest.fixture(scope="session")
def runtime(fake: Fake) -> str:
    """Build cudart.c."""
    from fake.conftest import build, newer

    source, library = Path(__file__).with_name("cudart.c"), fake.extension / "cudart.so"
    if not library.exists() or newer(source, library):
        compiler = os.environ.get("CC", "gcc").split()
        flags = "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"
        build(*compiler, *flags, "-o", str(library), str(source), "-ldl", "-lpthread")
    return str(library)


@pytest.fixture(scope="session")
def zygotes(fake: Fake, runtime: str) -> Iterator[Callable[[str], Zygote]]:
    """Return what forks children in which torch sees the fake devices, by allocator settings."""
    started: dict[str, Zygote] = {}

    def zygote(settings: str) -> Zygote:
        if settings not in started:
            preload = {"LD_PRELOAD": runtime, "CUDART": runtime}
            path = {"LD_LIBRARY_PATH": str(fake.driver), "PYTORCH_ALLOC_CONF": settings}
            quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # 2.14 warns of each failed allocation
            started[settings] = Zygote(child.environment({**preload, **path, **quiet}))
        return started[settings]

    yield zygote
    for one in started.values():
        one.close()


def on_torch(settings: str = "") -> Callable[[Callable[[], None]], Any]:
    """Turn a test into one that runs in a process of its own, with CUDA tensors on fake devices."""

    def decorate(test: Callable[[], None]) -> Any:
        def outside(zygotes: Callable[[str], Zygote]) -> None:
            code = f"from {__name__} import {test.__name__} as t; t.inside()"
            status, output = zygotes(settings).run(code, child.TIMEOUT_S)
            assert (status, output) == (0, "")

        outside.__name__, outside.__doc__ = test.__name__, test.__doc__
        outside.inside = test  # type: ignore[attr-defined]
        return outside

    return decorate


# ---- in the child ----


def driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.fakecuda_call.restype = ctypes.c_char_p
    library.fakecuda_vmm.restype = ctypes.c_longlong
    library.fakecuda_limit.argtypes = (ctypes.c_size_t,)
    return library


def cudart() -> Any:
    library = ctypes.CDLL(os.environ["CUDART"])
    library.fakecudart_capacity.argtypes = (ctypes.c_size_t,)
    return library


def physical() -> int:
    """Return the bytes of memory behind ranges."""
    return int(driver().fakecuda_vmm(1))


def mapping_calls() -> list[str]:
    """Return the driver calls since the last time that change what is mapped."""
    lib = driver()
    log = [lib.fakecuda_call(i).decode() for i in range(lib.fakecuda_calls())]
    lib.fakecuda_reset()
    return [call for call in log if call in ("cuMemCreate", "cuMemMap", "cuMemUnmap")]


def mib(count: float, device: int = 0) -> torch.Tensor:
    """Return a tensor of `count` MiB whose bytes nobody set."""
    return torch.empty(int(count * MIB), dtype=torch.uint8, device=device)


def produce(entries: int = 16) -> list[torch.Tensor]:
    """Return entries of 1 to 14 MiB, with temporaries in between."""
    made = []
    for i in range(entries):
        temporary = mib(3 + i % 5)
        made.append(mib(1 + 13 * (i % 4) / 3))
        del temporary
    return made


def range_of(tensor: torch.Tensor) -> int:
    """Return the id of the range that a tensor lies in, 0 for none."""
    answer = core().bridge_CollectRange(tensor.data_ptr())
    return int(answer.split()[0]) if answer else 0


def core() -> Any:
    return _native._core


def reserved(device: int = 0) -> int:
    return int(torch.cuda.memory_reserved(device))


class Records:
    """What a survey says about entries, as far as `Room` asks."""

    def __init__(self, *entries: torch.Tensor) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def address(self, e: int) -> int:
        return self._entries[e].data_ptr()

    def nbytes(self, e: int) -> int:
        return self._entries[e].nbytes


def room_of(*entries: torch.Tensor) -> _room.Room:
    return _collect.room(entries[0].device, Records(*entries))


def fill(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Write different bytes to each; return what they are."""
    want = [torch.full((t.numel(),), i % 251, dtype=torch.uint8) for i, t in enumerate(tensors)]
    for t, w in zip(tensors, want, strict=True):
        t.copy_(w)
    return want


def check(tensors: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert all(torch.equal(t.cpu(), w) for t, w in zip(tensors, want, strict=True))


def check_nothing_left() -> None:
    torch.cuda.empty_cache()
    assert [torch.cuda.memory_allocated(d) for d in range(2)] == [0, 0]
    assert [reserved(d) for d in range(2)] == [0, 0]
    assert physical() == 0


# ---- tests ----


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


def ragged(seed: int) -> dict[str, list[torch.Tensor]]:
    """Return 4 keys x 3 batches of up to 600 rows of 64 floats, with temporaries in between."""
    r = random.Random(seed)
    made: dict[str, list[torch.Tensor]] = {}
    for k in range(4):
        made[str(k)] = []
        for _ in range(3):
            temporary = mib(r.random() * 3)
            entry = torch.empty(r.randrange(600), 8, 8, device=temporary.device)
            made[str(k)].append(entry.copy_(torch.randn(entry.shape)))
            del temporary, entry
    return made


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
