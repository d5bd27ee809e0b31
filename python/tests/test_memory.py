"""memory(): what goflat itself holds on devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import goflat
from goflat import _native
from helpers import child
from helpers.jobs import ragged


@pytest.mark.usefixtures("engine")
def test_work_on_the_cpu_holds_nothing() -> None:
    flat = goflat.flatten(ragged())
    arena = goflat.Arena(flat.layout)
    assert goflat.memory() == {}
    assert len(arena.flat) == 2


def test_bytes_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {1: 4096, 0: 12, 63: 1 << 40}
    core = SimpleNamespace(bridge_Held=lambda device: held.get(device, 0))
    monkeypatch.setattr(_native, "_core", core)
    want = {"cuda:0": 12, "cuda:1": 4096, "cuda:63": 1 << 40}
    assert list(goflat.memory().items()) == list(want.items())


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_core", None)
    assert goflat.memory() == {}


@pytest.mark.skipif(not _native.available(), reason="the native extension is not built")
def test_starts_no_driver() -> None:
    code = """
    import goflat
    assert goflat.memory() == {}
    mapped = open("/proc/self/maps").read()
    assert "libcuda.so" not in mapped
    """
    child.run(code)


def test_a_forked_child_has_nothing() -> None:
    child.fork("""
    import os, goflat
    pid = os.fork()
    if pid == 0:
        os._exit(goflat.memory() != {})
    assert os.waitpid(pid, 0)[1] == 0
    """)
