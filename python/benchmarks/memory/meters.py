"""Meters of memory. Both count from the level at `start`."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .setup import Setup

Bytes = dict[str, int]
KINDS = ("requested", "allocated", "reserved")


class Meter:
    """How far memory rose."""

    def now(self) -> Bytes:
        """Return what is used now."""
        raise NotImplementedError

    def peak(self) -> Bytes:
        """Return the most that was used since `reset`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the highest level."""
        raise NotImplementedError

    def start(self) -> None:
        """Count from here."""
        self.reset()
        self._before = self.now()

    def rise(self) -> Bytes:
        """Return how far the highest level is above that at `start`."""
        return _minus(self.peak(), self._before)

    def level(self) -> Bytes:
        """Return how far the level is above that at `start`."""
        return _minus(self.now(), self._before)


class CudaMeter(Meter):
    """What torch's allocator was asked for, gave, and took from the driver."""

    def now(self) -> Bytes:
        return self._counters("current")

    def peak(self) -> Bytes:
        return self._counters("peak")

    def reset(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def _counters(self, which: str) -> Bytes:
        stats = torch.cuda.memory_stats()
        return {kind: stats.get(f"{kind}_bytes.all.{which}", 0) for kind in KINDS}


class HostMeter(Meter):
    """Resident memory of this process as the kernel counts it, in whole pages."""

    def now(self) -> Bytes:
        return self._status("VmRSS")

    def peak(self) -> Bytes:
        return self._status("VmHWM")

    def reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM falls to what is resident

    def _status(self, name: str) -> Bytes:
        found: Any = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return {"resident": 1024 * int(found[1])}


def meter(setup: Setup) -> Meter:
    return CudaMeter() if setup.cuda else HostMeter()


def clear(setup: Setup) -> None:
    """Give back what earlier measurements have left in caches."""
    gc.collect()
    if setup.cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def wait(setup: Setup) -> None:
    if setup.cuda:
        torch.cuda.synchronize()


def _minus(a: Bytes, b: Bytes) -> Bytes:
    return {kind: a[kind] - b[kind] for kind in a}
