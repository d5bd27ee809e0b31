"""Which device, which stream, whose context."""

from __future__ import annotations

from typing import Any

import numpy as np

import goflat
from fake.child import in_child, lib


@in_child(context=[0, 1, None])
def test_the_current_context_is_left_alone(context: int | None) -> None:
    """All on cuda:1, whatever is current."""
    lib.make_current(context)
    before = lib.current()
    grid, want = lib.small()
    for _ in range(3):
        lib.reset()
        lib.assert_right(goflat.flatten(lib.features(grid)), want)
        assert lib.launches() == [(1, 0)]
        assert lib.current() == before
    lib.check_memory()


@in_child(context=[0, None])
def test_the_current_context_is_left_alone_by_errors(context: int | None) -> None:
    lib.make_current(context)
    before = lib.current()
    grid, _ = lib.small()
    for function in ("cuModuleLoadData", "cuLaunchKernel", "cuCtxPushCurrent"):
        lib.reset()
        lib.fail(function, 1, 700)
        with lib.raising(goflat.DeviceError, f"[{function}][CUDA_ERROR_ILLEGAL_ADDRESS]"):
            goflat.flatten(lib.features(grid))
        assert lib.current() == before


@in_child(other=["cuda:0", "cpu"])
def test_a_batch_on_two_devices_raises_before_anything_happens(other: str) -> None:
    grid, _ = lib.small()
    device = lib.CPU if other == "cpu" else lib.CUDA0
    grid[1][1] = lib.place(np.ones((4, 3), np.float32), device)
    lib.reset()
    with lib.raising(goflat.DeviceError, f"key '1', batch 1: got {other}, want cuda:1"):
        goflat.flatten(lib.features(grid))
    with lib.raising(goflat.DeviceError, f"key '1', batch 1: got {other}, want cuda:1"):
        goflat.flatten(lib.features(grid), packed=True)
    with lib.raising(goflat.DeviceError, f"key 1, batch 1: got {other}, want cuda:1"):
        goflat.flatten([{k: grid[k][b] for k in range(3)} for b in range(2)])
    with lib.raising(goflat.DeviceError, f"tensor 1: got {other}, want cuda:1"):
        goflat.cat([line[1] for line in grid])
    assert lib.log() == []


@in_child()
def test_batches_on_several_devices() -> None:
    """One launch per device, on the stream that is current there."""
    streams = [lib.new_stream(0), lib.new_stream(1)]
    for index, stream in enumerate(streams):
        lib.fakearray.set_stream(index, stream)
    lib.make_current(0)
    devices = [lib.CUDA1, lib.CUDA0, lib.CUDA1]
    host = [[np.full((k + b, 3), 10.0 * k + b, np.float32) for b in range(3)] for k in range(2)]
    grid = [[lib.place(x, d) for x, d in zip(line, devices, strict=True)] for line in host]
    lib.reset()
    flat = goflat.flatten(lib.features(grid))
    lib.assert_right(flat, lib.oracle(host))
    assert [out.device for out in flat] == ["device 2:1", "device 2:0", "device 2:1"]
    assert flat.layout.devices == ("device 2:1", "device 2:0", "device 2:1")
    assert lib.launches() == [(1, streams[1]), (0, streams[0])]
    assert lib.current() == 0

    outs = [lib.place(np.zeros_like(x), d) for x, d in zip(lib.oracle(host), devices, strict=True)]
    goflat.flatten(lib.features(grid), out=outs)
    lib.assert_right(outs, lib.oracle(host))
    assert lib.values(grid[0][1], "f4").tolist() == host[0][1].tolist()


@in_child()
def test_the_stream_is_the_one_that_is_current_at_the_call() -> None:
    grid, _ = lib.small()
    lib.reset()
    for stream in (
        0,
        lib.new_stream(1),
        1,
        2,
        lib.new_stream(1),
    ):  # 1 and 2: CUDA's reserved handles
        lib.fakearray.set_stream(0, 12345)
        lib.fakearray.set_stream(1, stream)
        lib.reset()
        goflat.flatten(lib.features(grid))
        assert lib.launches() == [(1, stream)]
    assert lib.fakearray.counts()["stream"] == 5


@in_child(state=["cold", "warm"])
def test_capture(state: str) -> None:
    """A graph with the first job of the process in it, errors and all, replayed on new contents."""
    stream = lib.new_stream(1)
    lib.fakearray.set_stream(1, stream)
    lib.make_current(1)
    memory = lib.Memory(lib.CUDA1, bytes(24))
    entry = lib.Exchange(memory.address, (2, 3), None, (2, 32), lib.CUDA1, keep=memory)
    job = {"a": [entry], "b": [entry]}
    if state == "warm":
        goflat.flatten(job)

    def work() -> Any:
        with lib.raising(goflat.ShapeError):
            goflat.flatten(job, dim=7)
        return goflat.flatten(job)

    (out,), replay = lib.capture(stream, work)
    for n in range(1, 4):
        values = np.full((2, 3), n, np.float32)
        memory.write(values.tobytes())
        replay()
        lib.assert_right([out], [np.concatenate([values, values])])
    lib.check_memory()


@in_child()
def test_a_stream_that_the_library_cannot_tell() -> None:
    grid, want = lib.small()
    lib.fakearray.fail("stream", 1)
    lib.reset()
    with lib.raising(RuntimeError, "stream was told to fail"):
        goflat.flatten(lib.features(grid))
    assert lib.log() == []
    lib.assert_right(goflat.flatten(lib.features(grid)), want)


@in_child()
def test_a_stream_of_another_device() -> None:
    grid, want = lib.small()
    lib.fakearray.set_stream(1, lib.new_stream(0))
    with lib.raising(goflat.DeviceError, "[cuLaunchKernel][CUDA_ERROR_INVALID_HANDLE]"):
        goflat.flatten(lib.features(grid))
    lib.fakearray.set_stream(1, lib.new_stream(1))
    lib.assert_right(goflat.flatten(lib.features(grid)), want)


@in_child()
def test_a_device_that_does_not_exist() -> None:
    grid, _ = lib.small((2, 7))
    with lib.raising(goflat.DeviceError, "there is no device 7", "use one of the 2"):
        goflat.flatten(lib.features(grid))


@in_child()
def test_an_out_on_another_device() -> None:
    grid, want = lib.small()
    for device, name in ((lib.CUDA0, "cuda:0"), (lib.CPU, "cpu")):
        outs = [lib.place(want[0], lib.CUDA1), lib.place(want[1], device)]
        lib.reset()
        with lib.raising(goflat.DeviceError, "batch 1: got out on " + name, "want cuda:1"):
            goflat.flatten(lib.features(grid), out=outs)
        assert lib.log() == []
    overlapping = [grid[0][0], lib.place(np.zeros_like(want[1]), lib.CUDA1)]
    with lib.raising(goflat.ShapeError):
        goflat.flatten(lib.features(grid), out=overlapping)
    assert lib.log() == []


@in_child()
def test_an_out_over_an_entry() -> None:
    """Addresses of device memory are compared like any others."""
    grid, want = lib.small()
    entry = grid[2][0]
    out = lib.Exchange(entry.address - 16, want[0].shape, None, (2, 32), lib.CUDA1, keep=entry)
    lib.reset()
    with lib.raising(goflat.OverlapError, "batch 0"):
        goflat.flatten(lib.features([line[:1] for line in grid]), out=[out])
    assert lib.log() == []


@in_child()
def test_host_batches_beside_device_batches() -> None:
    """No job for one call, for arrays that are not torch's: refused before anything happens."""
    grid, _ = lib.small()
    host, _ = lib.small(lib.CPU)
    mixed = [[a[0], b[1]] for a, b in zip(host, grid, strict=True)]
    lib.reset()
    with lib.raising(goflat.Error):
        goflat.flatten(lib.features(mixed))
    assert lib.log() == []
