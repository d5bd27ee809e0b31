"""Whatever fails: a clear error, nothing left behind, and the next call is right."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import goflat
from fake.child import in_child, lib

OOM = 2  # CUDA_ERROR_OUT_OF_MEMORY


@in_child(context=[0, 1, None])
def test_every_driver_call_may_fail(context: int | None) -> None:
    """Those that load the kernels first, one by one, then those of a launch."""
    lib.make_current(context)
    lib.works(lib.CUDA0)  # starts the driver; test_driver has the failures of that
    grid, want = lib.small()
    loading = failures(lib.features(grid), want)
    launching = failures(lib.features(grid), want)
    assert loading[:3] == [
        "cuThreadExchangeStreamCaptureMode",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
    ]
    assert {"cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction"} <= set(loading)
    assert launching[0] == "cuCtxGetCurrent"
    assert launching[-1] == "cuLaunchKernel"
    lib.reset()
    lib.assert_right(goflat.flatten(lib.features(grid)), want)
    assert "cuModuleLoadData" not in lib.log()
    lib.check_memory()


def failures(job: Any, want: list[Any]) -> list[str]:
    """Let the first driver call of a job fail, then the second, ...; return what made it fail.

    Loading is tried again each time, until it is done: then the calls of a job are others.
    """
    failed: list[str] = []
    before, clean = lib.current(), lib.alive()
    while True:
        lib.reset()
        lib.fail("*", len(failed) + 1, OOM)
        error = None
        try:
            lib.assert_right(goflat.flatten(job), want)
        except goflat.DeviceError as raised:
            error = str(raised)
        assert lib.current() == before
        if error is None:  # only leaving a context may fail: there is a second way
            assert lib.log()[len(failed) :][:2] in ([], ["cuCtxPopCurrent", "cuCtxSetCurrent"])
            return failed
        failed.append(lib.log()[len(failed)].split()[0])
        assert f"[{failed[-1]}][CUDA_ERROR_OUT_OF_MEMORY] out of memory" in error
        now = lib.alive()
        if now["modules"] > clean["modules"]:  # only the call after loading has failed
            assert failed[-1] == "cuThreadExchangeStreamCaptureMode"
            return failed
        assert now == clean


@in_child()
def test_a_failed_launch_on_the_second_device() -> None:
    there, want = lib.small()
    here, _ = lib.small(lib.CUDA0)
    grid = [[a[0], b[1]] for a, b in zip(here, there, strict=True)]
    lib.assert_right(goflat.flatten(lib.features(grid)), want)
    clean = lib.alive()
    lib.reset()
    lib.fail("cuLaunchKernel", 2, 719)
    with lib.raising(goflat.DeviceError, "[cuLaunchKernel][719]", "want a launch without errors"):
        goflat.flatten(lib.features(grid))
    assert lib.alive() == clean
    lib.assert_right(goflat.flatten(lib.features(grid)), want)
    lib.check_memory()


@in_child(kind=["Exchange", "Owned"])
def test_every_call_of_the_library_may_fail(kind: str) -> None:
    cls = getattr(lib, kind)
    lib.fakearray.set_results(cls)
    grid, want = lib.small(cls=cls)
    before = lib.fakearray.counts()
    lib.assert_right(goflat.flatten(lib.features(grid)), want)
    calls = lib.fakearray.counts()
    clean = lib.alive()
    functions = ["allocate", "object", "stream", "owned" if kind == "Owned" else "borrow"]
    for function in functions:
        count = calls[function] - before[function]
        assert count > 0
        for nth in range(1, count + 1):
            lib.reset()
            lib.fakearray.fail(function, nth)
            try:
                goflat.flatten(lib.features(grid))
            except goflat.OutOfMemoryError as error:
                assert (function, str(error)) == ("allocate", "could not allocate")
            except RuntimeError as error:
                assert str(error) == f"{function} was told to fail"
            else:
                raise AssertionError(f"{function} {nth}: no error")
            assert lib.launches() == []
            assert lib.alive() == clean, (function, nth)
            lib.assert_right(goflat.flatten(lib.features(grid)), want)
    lib.check_memory()
    lib.check_deleters()


@in_child()
def test_a_trap_of_a_kernel_is_told_at_the_next_call() -> None:
    """An entry whose memory is gone: the device finds out, and everybody hears of it later."""
    grid, want = lib.small()
    clean = lib.alive()
    gone = [[lib.Exchange(4096, (2, 3), None, (2, 32), lib.CUDA1)]]
    goflat.flatten(lib.features(gone))
    with lib.raising(goflat.DeviceError, "CUDA_ERROR_ILLEGAL_ADDRESS"):
        goflat.flatten(lib.features(grid))
    lib.reset()
    lib.assert_right(goflat.flatten(lib.features(grid)), want)
    gone.clear()
    assert lib.alive()["memory"] == clean["memory"]


@in_child()
def test_errors_of_the_job_leave_the_driver_alone() -> None:
    grid, want = lib.small()
    clean = lib.alive()
    lib.reset()
    with lib.raising(goflat.ShapeError):
        goflat.flatten(lib.features(grid), dim=2)
    with lib.raising(goflat.ShapeError):
        goflat.flatten(lib.features([*grid, [lib.place(np.ones((2, 4), np.float32))] * 2]))
    with lib.raising(goflat.DTypeError):
        goflat.flatten(lib.features([*grid, [lib.place(np.ones((2, 3)))] * 2]))
    with lib.raising(goflat.DTypeError):
        goflat.flatten(lib.features([*grid, [np.ones((2, 3), np.float32)] * 2]))
    with lib.raising(goflat.ShapeError):
        goflat.flatten({"a": [lib.place(np.ones((), np.float32), lib.CUDA1)]})
    with lib.raising(goflat.ShapeError):
        goflat.flatten(lib.features(grid), out=[lib.place(want[0], lib.CUDA1)])
    assert lib.log() == []
    assert lib.alive() == clean


@in_child()
def test_thousands_of_calls_leave_nothing() -> None:
    grid, _ = lib.small()
    wrong = [*grid, [lib.place(np.ones((2, 4), np.float32))] * 2]
    goflat.flatten(lib.features(grid))
    clean = lib.alive()
    for _ in range(3_000):
        goflat.flatten(lib.features(grid))
        with lib.raising(goflat.ShapeError):
            goflat.flatten(lib.features(wrong))
    assert lib.alive() == clean
    lib.check_deleters()


@in_child()
def test_threads_share_the_devices() -> None:
    """The first calls at once, so that both devices are loaded by several threads."""
    start = threading.Barrier(8)

    def work(number: int) -> None:
        grid, want = lib.small((2, number % 2))
        start.wait()
        for _ in range(30):
            lib.assert_right(goflat.flatten(lib.features(grid)), want)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert lib.log().count("cuModuleLoadData") == 2
    assert lib.alive()["arrays"] == 0
    lib.check_memory()
