"""collect() on a GPU: one range, honest statistics, memory that goes back, producers as fast."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _collect, _native, _pools
from gpu.support import DEVICE, GIB, bits, need, need_devices, raw, run, sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def clean(cuda: None) -> Iterator[None]:
    """Start and end with nothing in torch's cache and nothing in ranges."""
    with goflat.collect():  # loads kernels, whose code takes memory of the device
        produce(1)
    empty()
    yield
    empty()
    mapped, segments, _ = _pools.memory(0)
    assert segments == 0
    assert mapped == 0
    assert _collect.contexts() == []


def empty() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def range_of(t: torch.Tensor) -> int:
    answer = _native._core.bridge_CollectRange(t.data_ptr())  # type: ignore[union-attr]
    return int(answer.split()[0]) if answer else 0


def outside_of_torch() -> int:
    """Return the bytes in use on the device that torch's allocator does not count."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def produce(entries: int = 16, rows: int = 60) -> list[torch.Tensor]:
    """Return ragged entries of up to 3 MB and more, made with temporaries in between."""
    made = []
    for i in range(entries):
        n = rows + 13 * (i % 5)
        made.append((torch.rand(n, 256, 7, 7, device=DEVICE) * 2).relu_() - 1)
    return made


def mib(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device=DEVICE)


def test_one_range() -> None:
    with goflat.collect():
        made = produce()
    assert {range_of(t) for t in made} == {range_of(made[0])} != {0}
    want = [t.cpu() for t in made]
    clones = [t.clone() for t in made]
    torch.cuda.empty_cache()
    other = [torch.full((1 << 20,), 7.0, device=DEVICE) for _ in range(50)]
    assert all(torch.equal(t.cpu(), w) for t, w in zip(made, want, strict=True))
    assert all(torch.equal(t.cpu(), w) for t, w in zip(clones, want, strict=True))
    assert len(other) == 50


def test_tensors_over_several_chunks() -> None:
    with goflat.collect():
        big = bits((300 * MIB,), torch.uint8)
    host = big.cpu()
    assert torch.equal(big.clone().cpu(), host)
    pinned = host.flip(0).pin_memory()
    big.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(big.cpu(), pinned)


def test_statistics() -> None:
    level = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with goflat.collect():
        made = produce()
    payload = sum(t.nbytes for t in made)
    assert payload <= torch.cuda.memory_allocated() - level[0] <= payload + MIB * len(made)
    mapped, segments, _ = _pools.memory(0)
    assert torch.cuda.memory_reserved() - level[1] >= segments
    assert mapped - segments <= 100 * MIB
    assert goflat.memory().get("cuda:0", 0) >= mapped - segments


def test_empty_cache() -> None:
    before = torch.cuda.mem_get_info()[0]
    with goflat.collect():
        made = produce(40)
    used = before - torch.cuda.mem_get_info()[0]
    want = [t.cpu() for t in made]
    empty()
    assert all(torch.equal(t.cpu(), w) for t, w in zip(made, want, strict=True))
    del made
    with goflat.collect():
        small = mib(1)
    kept = before - torch.cuda.mem_get_info()[0]
    assert kept > used // 2
    empty()
    assert before - torch.cuda.mem_get_info()[0] <= 80 * MIB
    del small
    empty()
    assert before - torch.cuda.mem_get_info()[0] <= 4 * MIB


def test_second_context_maps_nothing() -> None:
    with goflat.collect():
        addresses = [t.data_ptr() for t in produce()]
    mapped = _pools.memory(0)[0]
    free = torch.cuda.mem_get_info()[0]
    for _ in range(5):
        with goflat.collect():
            again = [t.data_ptr() for t in produce()]
        assert again == addresses
        assert _pools.memory(0)[0] == mapped
        assert abs(torch.cuda.mem_get_info()[0] - free) <= 4 * MIB


def test_torchs_own_cache_is_spared() -> None:
    with goflat.collect():  # after the cache was emptied the next context does it, too
        pass
    cached = mib(512)
    del cached
    level = torch.cuda.memory_reserved()
    for _ in range(3):
        with goflat.collect():
            produce()
    assert torch.cuda.memory_reserved() >= level


def test_two_ranges() -> None:
    with goflat.collect():
        first = produce()
    want = [t.cpu() for t in first]
    with goflat.collect():
        second = produce()
    assert range_of(first[0]) != range_of(second[0])
    del second
    empty()
    assert all(torch.equal(t.cpu(), w) for t, w in zip(first, want, strict=True))


def test_work_in_flight_when_memory_goes() -> None:
    """The driver gets memory back only when kernels are done with it."""
    for give_back in (True, False):
        with goflat.collect():
            made = produce()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sleep(50)
            sums = [t.sum() for t in made]
        for t in made:
            t.record_stream(side)
        sleep(50)
        made[0].add_(1)
        del made
        if give_back:
            torch.cuda.empty_cache()
        with goflat.collect(), torch.cuda.stream(torch.cuda.Stream()):
            again = produce()
        assert len(sums) == len(again)
        torch.cuda.synchronize()
        del again


def test_streams_do_not_overwrite_each_other() -> None:
    """Memory that one stream still reads goes to another only after it."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(first), goflat.collect():
            a = torch.ones(8 * MIB, device=DEVICE)
            sleep(5)
            total = a.sum()
            del a
        with torch.cuda.stream(second), goflat.collect():
            b = torch.zeros(8 * MIB, device=DEVICE)
        torch.cuda.synchronize()
        assert float(total) == 8 * MIB
        del b


def test_fraction() -> None:
    """A cap counts what is collected, and what is collected makes room again."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total)
    try:
        for _ in range(3):
            with goflat.collect():
                kept = mib(900)
                with pytest.raises(torch.OutOfMemoryError):
                    mib(1500)
            with pytest.raises(torch.OutOfMemoryError):
                mib(1500)
            del kept
            mib(1500)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.slow
def test_out_of_memory() -> None:
    """The device is really full: what was kept for the next context helps the allocation."""
    need(20 * GIB)
    with goflat.collect():
        kept = [mib(1024) for _ in range(8)]
    del kept
    with goflat.collect():
        small = mib(1)
    free = torch.cuda.mem_get_info()[0]
    large = mib((free + 4 * GIB) // MIB)
    assert range_of(small) != 0
    with pytest.raises(torch.OutOfMemoryError), goflat.collect():
        mib(100 * 1024)
    assert large.numel() > free


def test_threads() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(10):
                with goflat.collect():
                    made = produce(6)
                want = [t.cpu() for t in made]
                assert len({range_of(t) for t in made}) == 1
                assert all(torch.equal(t.cpu(), w) for t, w in zip(made, want, strict=True))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def test_devices() -> None:
    need_devices(2)
    with goflat.collect("cuda:1"):
        a, b = torch.ones(5 * MIB, device="cuda:1"), torch.ones(5 * MIB, device=DEVICE)
    assert range_of(a) != 0 == range_of(b)
    assert torch.equal(a.to("cuda:0"), b)
    c = torch.empty_like(a)
    c.copy_(b)
    assert torch.equal(a, c)


def test_model() -> None:
    """Backward through what was made inside: autograd's threads allocate elsewhere."""
    conv = torch.nn.Conv2d(16, 32, 3).to(DEVICE)
    x = torch.rand(8, 16, 64, 64, device=DEVICE)
    want = conv(x)
    with goflat.collect():
        got = conv(x)
        got.square().mean().backward()
    assert torch.equal(got, want)
    assert conv.weight.grad is not None


def test_capture() -> None:
    """Inside a capture the context does nothing; the graph has its own pool."""
    x = torch.ones(1000, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), goflat.collect():
        y = x * 2
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert range_of(y) == 0
    assert float(y[0]) == 6
    del graph, y


EXPANDABLE = """
import torch, goflat
from goflat import _native
with goflat.collect():
    made = [(torch.rand(40 + i, 256, 7, 7, device="cuda") * 2).relu_() for i in range(16)]
want = [t.cpu() for t in made]
ids = {_native._core.bridge_CollectRange(t.data_ptr()).split()[0] for t in made}
assert len(ids) == 1, ids
torch.cuda.empty_cache()
assert all(torch.equal(t.cpu(), w) for t, w in zip(made, want))
"""


def test_expandable_segments() -> None:
    run(EXPANDABLE, PYTORCH_ALLOC_CONF="expandable_segments:True")
    run(EXPANDABLE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def test_raw_views_work() -> None:
    with goflat.collect():
        t = bits((1000, 1000))
    assert raw(t).numel() == t.nbytes


def timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    kept = work()
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    del kept
    return took


def test_producers_are_not_slower() -> None:
    """From the second context on; loose, the numbers are those of the benchmark."""

    def inside() -> Any:
        with goflat.collect():
            return produce(64)

    outside = min(timed(lambda: produce(64)) for _ in range(10))
    timed(inside)
    assert min(timed(inside) for _ in range(10)) <= 1.5 * outside
