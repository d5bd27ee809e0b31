"""Work goes on the current stream, waits for nobody on the host, and respects the allocator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    check,
    check_bits,
    entries,
    job,
    oracle,
    random_job,
    refill,
    seed_job,
    sleep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]

pytestmark = pytest.mark.usefixtures("cuda")


def strided(features: Features) -> Features:
    return {key: [t.transpose(1, 2) for t in x] for key, x in features.items()}


FORMS: dict[str, Callable[[Features], Callable[[], Any]]] = {
    "new": lambda x: lambda: goflat.flatten(x),
    "packed": lambda x: lambda: goflat.flatten(x, packed=True),
    "strided": lambda x: lambda: goflat.flatten(strided(x)),
    "out": lambda x: with_outs(x),
    "cat": lambda x: lambda: goflat.cat([line[0] for line in x.values()]),
}


def with_outs(features: Features) -> Callable[[], Any]:
    outs = [torch.empty_like(t).view_as(t) for t in goflat.flatten(features)]
    return lambda: goflat.flatten(features, out=outs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side", [False, True])
def test_the_host_does_not_wait(form: str, side: bool) -> None:
    features = job([[5, 6], [7, 8]], (64, 9))
    call = FORMS[form](features)
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        call()  # kernels are loaded, memory is cached
        torch.cuda.synchronize()
        sleep(500)
        start = perf_counter()
        call()
        took = perf_counter() - start
        assert not stream.query(), "the stream has been waited for"
    assert took < 0.2
    torch.cuda.synchronize()


@pytest.mark.parametrize("side", [False, True])
def test_entries_are_read_when_the_stream_has_written_them(side: bool) -> None:
    features = seed_job()
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):  # kernels are loaded, memory is cached
        check(features, goflat.flatten(features))
        check(features, goflat.flatten(features, packed=True))
    torch.cuda.synchronize()
    with torch.cuda.stream(other := torch.cuda.Stream()):
        sleep(1000)
    with torch.cuda.stream(stream):
        sleep(100)
        refill(features)
        flat = goflat.flatten(features)
        packed = goflat.flatten(features, packed=True)
        check(features, flat)
        check(features, packed)
        assert not other.query(), "another stream has been waited for"
    torch.cuda.synchronize()


def test_the_current_stream_may_change_between_calls() -> None:
    features = seed_job()
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            sleep(20)
            refill(features)
            check(features, goflat.flatten(features))
        torch.cuda.synchronize()
        refill(features)
        check(features, goflat.flatten(features))
        torch.cuda.synchronize()


def test_entries_dropped_at_once_on_a_side_stream() -> None:
    """Their memory is used again at once, by work that the stream does after the copy."""
    side = torch.cuda.Stream()
    for _ in range(3):
        torch.cuda.empty_cache()  # the stream may have blocks of earlier tests
        with torch.cuda.stream(side):
            features = seed_job()
            want = oracle(features)
            sleep(50)
            flat = goflat.flatten(features)
            addresses = {t.data_ptr() for t in entries(features)}
            del features
            junk = [torch.full((50, 256, 7, 7), 7.0, device=DEVICE) for _ in range(16)]
            assert addresses & {t.data_ptr() for t in junk}, "nothing was used again"
            del junk
        torch.cuda.synchronize()
        check_bits(flat, want)


def test_entries_of_another_stream_need_record_stream() -> None:
    """As with torch.cat: the caller says that a second stream uses the memory."""
    side = torch.cuda.Stream()
    features = seed_job()
    want = oracle(features)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sleep(100)
        flat = goflat.flatten(features)
        for t in entries(features):
            t.record_stream(side)
    del features
    junk = [torch.full((50, 256, 7, 7), 7.0, device=DEVICE) for _ in range(16)]
    torch.cuda.synchronize()
    check_bits(flat, want)
    del junk


@pytest.mark.parametrize("packed", [False, True])
def test_record_stream_protects_outputs(packed: bool) -> None:
    """Outputs are torch's own memory, so it knows them."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        features = seed_job()
        want = oracle(features)
        flat = goflat.flatten(features, packed=packed)
    main.wait_stream(side)
    sleep(100)
    copies = [out.clone() for out in flat]
    sizes = [out.shape for out in flat]
    for out in flat:
        out.record_stream(main)
    del flat, out
    with torch.cuda.stream(side):
        junk = [torch.full(size, 7.0, device=DEVICE) for size in sizes * 2]
    torch.cuda.synchronize()
    check_bits(copies, want)
    del junk


def test_8_threads_on_streams_of_their_own() -> None:
    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(40):
                features, dim = random_job(1000 * number + seed)
                flat = goflat.flatten(features, dim=dim)
                check(features, flat, dim)
                with pytest.raises(goflat.ShapeError):
                    goflat.flatten(features, dim=9)
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_8_threads_share_a_job() -> None:
    features = seed_job()
    want = oracle(features)
    torch.cuda.synchronize()

    def work(_: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                check_bits(goflat.flatten(features), want)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_an_external_stream() -> None:
    """A stream that torch did not make, by its raw handle."""
    made = torch.cuda.Stream()
    features = job()
    with torch.cuda.stream(torch.cuda.ExternalStream(made.cuda_stream)):
        sleep(20)
        refill(features)
        check(features, goflat.flatten(features))
    torch.cuda.synchronize()


class Foreign:
    """A stream of a library that speaks no more than the protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def of_cuda_core(handle: int) -> Any:
    """Return a stream as cuda.core, which other libraries build on, has them."""
    core = pytest.importorskip("cuda.core")
    device = core.Device(torch.cuda.current_device())
    device.set_current()
    return device.create_stream(Foreign(handle))


def of_accelerator(handle: int) -> Any:
    """Return a stream as torch.accelerator hands them out."""
    side = torch.cuda.ExternalStream(handle)
    return torch.Stream(side.stream_id, side.device_index, side.device_type)


FOREIGN: dict[str, Callable[[int], Any]] = {
    "protocol": Foreign,
    "cuda.core": of_cuda_core,
    "torch.accelerator": of_accelerator,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_wait_for_streams_of_other_libraries(kind: str) -> None:
    """Entries are written over once what a side stream still copies of them is copied."""
    side = torch.cuda.Stream()
    stream = FOREIGN[kind](side.cuda_stream)
    goflat.flatten_(split(seed_job()), max_growth=0)  # kernels are loaded
    features = split(seed_job())
    want = oracle(features)
    copies = [torch.empty_like(t) for t in entries(features)]
    before = [t.clone() for t in entries(features)]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sleep(100)
        for copy, t in zip(copies, entries(features), strict=True):
            copy.copy_(t)
        del copy, t
    flat = goflat.flatten_(features, max_growth=0, wait=[stream])
    torch.cuda.synchronize()
    check_bits(flat, want)
    check_bits(copies, before)


def split(features: Features) -> Features:
    """Return a job whose entries are parts of one tensor."""
    parts = list(torch.cat(entries(features)).split([len(t) for t in entries(features)]))
    size = len(next(iter(features.values())))
    return {key: [parts.pop(0) for _ in range(size)] for key in features}


@pytest.mark.parametrize("kind", FOREIGN)
def test_record_streams_of_other_libraries(kind: str) -> None:
    side = torch.cuda.Stream()
    flat = goflat.flatten(seed_job())
    want = [out.clone() for out in flat]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sleep(100)
        copies = [out.clone() for out in flat]
    goflat.record_stream(flat, FOREIGN[kind](side.cuda_stream))
    sizes = [out.shape for out in flat]
    del flat
    junk = [torch.full(size, 7.0, device=DEVICE) for size in sizes * 2]
    torch.cuda.synchronize()
    check_bits(copies, want)
    del junk


@pytest.mark.parametrize("handle", [0, 2], ids=["legacy", "per thread"])
def test_default_streams_by_handle(handle: int) -> None:
    # torch makes a new stream for the handle 0
    stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
    features = seed_job()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        sleep(50)
        refill(features)
        flat = goflat.flatten(features)
        taken = goflat.flatten_(split(features), max_growth=0)
        stream.synchronize()
        check(features, flat)
        check(features, taken)
        assert torch.cuda.current_stream().cuda_stream == handle


def test_streams_of_every_priority() -> None:
    features = seed_job()
    want = oracle(features)
    torch.cuda.synchronize()
    for priority in range(-5, 1):
        with torch.cuda.stream(torch.cuda.Stream(priority=priority)) as _:
            check_bits(goflat.flatten(features), want)
            check_bits(goflat.flatten_(split(features), max_growth=0), want)
    torch.cuda.synchronize()


def test_events_order_work_of_two_streams() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    features = seed_job()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        sleep(50)
        refill(features)
        written = first.record_event()
    with torch.cuda.stream(second):
        second.wait_event(written)
        flat = goflat.flatten(features)
        done = second.record_event()
    done.synchronize()
    check(features, flat)
    torch.cuda.synchronize()
