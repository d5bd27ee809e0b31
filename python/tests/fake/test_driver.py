"""Machines without a driver, and with one that is no use: the CPU goes on, CUDA says what to do."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import goflat
from fake.child import in_child, lib

if TYPE_CHECKING:
    from fake.place import Fake


UPDATE = "update the NVIDIA driver to R530 or later"

BROKEN = {
    "no device": ({"FAKECUDA_FAIL": "cuInit:1:100"}, ["cuInit returned 100", "nvidia-smi"]),
    "broken": ({"FAKECUDA_FAIL": "cuInit:1:999"}, ["cuInit returned 999", "nvidia-smi works"]),
    "old driver": ({"FAKECUDA_FAIL": "cuInit:1:35"}, ["cuInit returned 35", UPDATE]),
    "CUDA 12.0": ({"FAKECUDA_DRIVER_VERSION": "12000"}, ["CUDA 12.0, goflat needs 12.1", UPDATE]),
    "no devices": ({"FAKECUDA_DEVICES": "0"}, ["cuInit returned 100", "nvidia-smi"]),
    "hidden": ({"CUDA_VISIBLE_DEVICES": ""}, ['CUDA_VISIBLE_DEVICES="" hides every device']),
    "count fails": (
        {"FAKECUDA_FAIL": "cuDeviceGetCount:1:3"},
        ["[cuDeviceGetCount][CUDA_ERROR_NOT_INITIALIZED]"],
    ),
    "version fails": (
        {"FAKECUDA_FAIL": "cuDriverGetVersion:1:1"},
        ["[cuDriverGetVersion][CUDA_ERROR_INVALID_VALUE]"],
    ),
}


def source(parts: list[str]) -> str:
    return f"from fake.library import cpu_goes_on; cpu_goes_on({parts!r})"


@pytest.mark.parametrize("name", BROKEN)
def test_a_driver_that_is_no_use(fake: Fake, name: str) -> None:
    env, parts = BROKEN[name]
    fake.run(source(parts), **env)


def test_no_driver(fake: Fake) -> None:
    if installed():
        pytest.skip("there is a driver on this machine")
    parts = ["libcuda.so.1 was not loaded", "install the NVIDIA driver", "--gpus all"]
    fake.run(source(parts), library_path="")


def test_a_driver_that_cannot_be_loaded(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    fake.run(source(["libcuda.so.1 was not loaded", "install"]), library_path=str(tmp_path))


def test_another_library_of_that_name(fake: Fake, tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(library)], check=True)
    fake.run(source(["libcuda.so.1 has no cuInit", "library path"]), library_path=str(tmp_path))


def test_import_binds_without_a_driver(fake: Fake) -> None:
    code = source(["libcuda.so.1 was not loaded"])
    if not installed():
        fake.run(code, library_path="", LD_BIND_NOW="1")
    fake.run("from fake.library import works; works()", LD_BIND_NOW="1")


def installed() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_the_extension_needs_no_driver() -> None:
    for library in Path(str(goflat.__file__)).parent.glob("_core*.so"):
        done = subprocess.run(
            ["readelf", "--wide", "--dynamic", "--dyn-syms", str(library)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "NEEDED" in done.stdout
        assert "libcuda" not in done.stdout
        assert " cu" not in done.stdout  # nor a symbol of it


@in_child()
def test_the_driver_is_opened_by_the_first_job_that_needs_it() -> None:
    host, _ = lib.small(lib.CPU)
    grid, _ = lib.small()
    goflat.flatten(lib.features(host))
    assert lib.log() == []
    goflat.flatten(lib.features(grid))
    first = lib.log()
    assert first[:3] == ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"]
    goflat.flatten(lib.features(grid))
    again = [line.split()[0] for line in lib.log()[len(first) :]]
    assert again == ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]


@in_child()
def test_nothing_that_waits_copies_or_allocates() -> None:
    """What a capture would not survive, the first call included."""
    grid, _ = lib.small()
    for _ in range(2):
        goflat.flatten(lib.features(grid))
    names = {line.split()[0] for line in lib.log()} - {"cuThreadExchangeStreamCaptureMode"}
    assert not [name for name in names if "Mem" in name or "Sync" in name or "Stream" in name]
