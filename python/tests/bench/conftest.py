"""Puts the benchmarks in reach, runs them once, and pretends that there is a GPU."""

from __future__ import annotations

import gc
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import __main__

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(str(goflat.__file__)).parents[1]))


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a run of everything that a CPU has, as small as it gets."""
    file = tmp_path_factory.mktemp("bench") / "run.json"
    assert __main__.main(["bench", "--quick", "--json", str(file)]) == 0
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


class Event:
    """Of a device that takes no time."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return False

    def elapsed_time(self, _: Event) -> float:
        return 1.0


LEVELS = ("requested_bytes", "allocated_bytes", "reserved_bytes", "allocation")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a setup for a GPU where there is none: memory never grows, all is done at once."""
    answers = {
        "_sleep": None,
        "empty_cache": None,
        "mem_get_info": (1 << 40, 1 << 40),
        "memory_reserved": 0,
        "memory_stats": {
            f"{level}.all.{which}": 0
            for level in LEVELS
            for which in ("current", "peak", "allocated")
        },
        "reset_peak_memory_stats": None,
        "set_per_process_memory_fraction": None,
        "synchronize": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clocks = import_module("benchmarks.memory.clocks")
    monkeypatch.setattr(clocks, "FLUSH_BYTES", 16)
    setup = import_module("benchmarks.memory.setup")
    gc.freeze()  # so that collections, of which there are many, are quick
    yield type("Pretended", (setup.Setup,), {"cuda": True})(samples=2, seeds=6, shrink=1000)
    gc.unfreeze()
