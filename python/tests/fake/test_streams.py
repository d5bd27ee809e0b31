"""torch's streams on two devices: which of them work goes on, and what they are told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from fake.contexts import driver, launches, on_torch, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    Job = dict[str, list[Tensor]]

LOTS = 1 << 40
ROWS = ((2, 1, 3, 2), (0, 4, 1, 5))
PER_THREAD = 2  # CU_STREAM_PER_THREAD
pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


class Foreign:
    """A stream of a library that speaks no more than the protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class Core(Foreign):
    """A stream like those of cuda.core, whose device has a number."""

    def __init__(self, handle: int, device: int) -> None:
        super().__init__(handle)
        self.device = self
        self.device_id = device


def host(start: float = 0.0) -> Job:
    """Return 2 keys x 4 batches of (rows, 3) float32 on the CPU."""
    count = iter(range(100))
    return {
        str(k): [torch.arange(3.0 * n).reshape(n, 3) + 100 * next(count) + start for n in line]
        for k, line in enumerate(ROWS)
    }


def put(job: Job, *devices: int) -> Job:
    """Return a copy of `job` with batch b on ``devices[b]``."""
    pairs = {k: zip(line, devices, strict=True) for k, line in job.items()}
    return {k: [torch.empty_like(x, device=d).copy_(x) for x, d in p] for k, p in pairs.items()}


def split(job: Job, *devices: int) -> Job:
    """Like `put`, but the entries of a device are parts of one tensor, which nobody else holds."""
    wholes = {}
    for d in set(devices):
        parts = [x for line in job.values() for x, at in zip(line, devices, strict=True) if at == d]
        whole = torch.empty(sum(map(len, parts)), 3, device=d)
        wholes[d] = iter(whole.copy_(torch.cat(parts)).split([len(x) for x in parts]))
    return {k: [next(wholes[d]) for d in devices] for k in job}


def check(flat: Any, job: Job) -> None:
    """Assert that outputs are right."""
    columns = zip(*job.values(), strict=True)
    want = [torch.cat(column) for column in columns]
    assert [out.cpu().tolist() for out in flat] == [out.tolist() for out in want]


class streams_of_both:
    """Make a new stream of each device current, cuda:1's last; check that it all stays so."""

    def __enter__(self) -> list[Any]:
        self.streams = [torch.cuda.Stream(d) for d in range(2)]
        self._before = torch.cuda.current_device(), [torch.cuda.current_stream(d) for d in (0, 1)]
        for stream in self.streams:
            with torch.cuda.device(stream.device):
                torch.cuda.set_stream(stream)
        torch.cuda.set_device(0)
        launches(), told()
        return self.streams

    def __exit__(self, *_: object) -> None:
        assert torch.cuda.current_device() == 0
        assert [torch.cuda.current_stream(d) for d in range(2)] == self.streams
        device, streams = self._before
        for stream in streams:
            torch.cuda.set_stream(stream)
        torch.cuda.set_device(device)


@on_torch()
def test_each_device_works_on_its_current_stream() -> None:
    features = put(host(), 1, 0, 1, 0)
    outs = [torch.empty(n, 3, device=d) for n, d in ((2, 1), (5, 0), (4, 1), (7, 0))]
    with streams_of_both() as (first, second):
        here, there = (0, first.cuda_stream), (1, second.cuda_stream)
        check(goflat.flatten(features), host())
        assert launches() == [there, here]
        goflat.flatten(features, out=outs)
        assert launches() == [there, here]
        check(outs, host())
        bound = goflat.plan(features).bind(features)
        launches()
        check(bound(), host())
        assert sorted(launches()) == [here, there]
        taken = split(host(), 1, 0, 1, 0)
        check(goflat.flatten_(taken, max_growth=0), host())
        assert set(launches()) == {here, there}
        assert {(device, stream) for _, device, stream, _ in told()} <= {here, there}


@on_torch()
def test_errors_leave_streams_and_devices_alone() -> None:
    features = put(host(), 1, 0, 1, 0)
    with streams_of_both():
        for nth in (1, 2):  # the launch of either device
            driver().fakecuda_fail(b"cuLaunchKernel", nth, 719)
            with pytest.raises(goflat.DeviceError):
                goflat.flatten(features)
            driver().fakecuda_reset()
            taken = split(host(), 1, 0, 1, 0)
            driver().fakecuda_fail(b"cuLaunchKernel", nth, 719)
            with pytest.raises(goflat.DeviceError):
                goflat.flatten_(taken, max_growth=0)
            driver().fakecuda_reset()
        with pytest.raises(goflat.ShapeError):
            goflat.flatten(features, dim=5)
        features["0"][0] = features["0"][0].to(0)
        with pytest.raises(goflat.DeviceError):
            goflat.flatten(features)


@on_torch()
def test_default_streams() -> None:
    """The legacy one, and that of the calling thread, which work must be enqueued from."""
    job = put(host(), 1, 1, 1, 1)
    launches()
    check(goflat.flatten(job), host())
    assert launches() == [(1, 0)]
    with torch.cuda.stream(torch.cuda.ExternalStream(PER_THREAD, device=1)):
        check(goflat.flatten(job), host())
        assert launches() == [(1, PER_THREAD)]


@on_torch()
def test_threads_with_streams_of_their_own() -> None:
    start = threading.Barrier(8)

    def work(number: int) -> set[tuple[int, int]]:
        device = number % 2
        stream = torch.cuda.Stream(device)
        job = host(start=1000.0 * number)
        features = put(job, *[device] * 4)
        start.wait()
        with torch.cuda.stream(stream):
            for _ in range(20):
                check(goflat.flatten(features), job)
                check(goflat.flatten_(split(job, *[device] * 4), max_growth=0), job)
                with pytest.raises(goflat.ShapeError):
                    goflat.flatten(features, dim=7)
                assert torch.cuda.current_stream(device) == stream
                assert torch.cuda.current_device() == device
        assert torch.cuda.current_device() == 0
        return {(device, stream.cuda_stream)}

    launches()
    with ThreadPoolExecutor(8) as pool:
        mine = set().union(*pool.map(work, range(8)))
    assert len(mine) == 8
    assert set(launches()) == mine


# ---- wait= ----


def waits() -> list[tuple[int, int]]:
    """Return (stream, stream waited for) since the last time."""
    return [(stream, other) for kind, _, stream, other in told() if kind == "wait"]


def waited_for(device: int) -> Iterator[tuple[Any, int]]:
    """Yield streams of a device in every form, with the handle that is to be waited for."""
    side = torch.cuda.Stream(device)
    handle = side.cuda_stream
    yield side, handle
    yield torch.Stream(side.stream_id, side.device_index, side.device_type), handle
    yield Foreign(handle), handle
    yield Core(handle, device), handle
    yield torch.cuda.ExternalStream(handle, device=device), handle
    yield Foreign(PER_THREAD), PER_THREAD
    yield Foreign(1), 0  # the legacy default stream has two handles
    yield Foreign(0), 0


@on_torch()
def test_wait_for_streams_of_every_kind() -> None:
    current = torch.cuda.Stream(1)
    for make in (split, put):  # in place, streamed
        for stream, handle in waited_for(1):
            with torch.cuda.stream(current):
                features = make(host(), 1, 1, 1, 1)
                told()
                check(goflat.flatten_(features, max_growth=LOTS, wait=[stream]), host())
                assert waits() == [(current.cuda_stream, handle)], type(stream)
            assert goflat.cat_([torch.ones(2, 3, device=1)], wait=[stream]).shape == (2, 3)


@on_torch()
def test_wait_on_several_devices() -> None:
    here, there = torch.cuda.Stream(0), torch.cuda.Stream(1)
    named = [here, Core(there.cuda_stream, 1), Foreign(PER_THREAD)]
    with streams_of_both() as currents:
        features = split(host(), 1, 0, 1, 0)
        told()
        check(goflat.flatten_(features, max_growth=0, wait=named), host())
        handles = here.cuda_stream, there.cuda_stream, PER_THREAD
        want = {(current.cuda_stream, handle) for current in currents for handle in handles}
        assert set(waits()) == want
        features = split(host(), 1, 0, 1, 0)
        with pytest.raises(goflat.DeviceError, match="Foreign without a device, for a job on sev"):
            goflat.flatten_(features, max_growth=0, wait=[Foreign(there.cuda_stream)])
        check(goflat.flatten_(features, max_growth=0), host())  # nothing had moved


# ---- record_stream ----


@on_torch()
def test_record_streams_of_every_kind() -> None:
    """torch asks a stream that was recorded, when the memory is given back, what it has done."""
    for form in range(4):
        flat = list(goflat.flatten(put(host(), 1, 1, 1, 1)))
        stream, handle = list(waited_for(1))[form]
        goflat.record_stream(flat, stream)
        told()
        del flat
        assert [(kind, on) for kind, _, on, _ in told()] == [("record", handle)] * 4
        torch.cuda.empty_cache()


@on_torch()
def test_entries_of_another_stream_are_recorded() -> None:
    features = split(host(), 1, 1, 1, 1)
    with torch.cuda.stream(torch.cuda.Stream(1)) as _:
        handle = torch.cuda.current_stream(1).cuda_stream
        flat = list(goflat.flatten_(features, max_growth=0))
        check(flat, host())
        told()
        del flat
    assert ("record", 1, handle, 0) in told()
