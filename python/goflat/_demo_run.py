"""The demo's work: the ways to flatten, and what each of them costs in memory and time.

Runs in child processes of `_demo`, which are the ones that import torch.
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

import goflat

from . import _doctor
from ._collect import collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]
    Mark = Callable[[], None]  # called after each step of a way that has steps

KEYS = BATCHES = 4
ROW_SHAPE = (256, 7, 7)
TIMED_S = 1.0  # for the rounds over all ways
ROUNDS = 30  # at most; the median no longer moves


# ---- the ways ----


def grow(features: Features, mark: Mark) -> list[Tensor]:
    """Start from the first key's tensors and add one key after the other."""
    flat: list[Tensor] = []
    for entries in features.values():
        if not flat:
            flat = list(entries)
        else:
            for b, entry in enumerate(entries):
                flat[b] = torch.cat([flat[b], entry])
        mark()
    return flat


def preallocate(features: Features, mark: Mark) -> list[Tensor]:
    """Make outputs of the final size and copy each entry into its slice."""
    columns = list(zip(*features.values(), strict=True))
    flat = [c[0].new_empty(sum(map(len, c)), *c[0].shape[1:]) for c in columns]
    for out, column in zip(flat, columns, strict=True):
        start = 0
        for entry in column:
            out[start : start + len(entry)].copy_(entry)
            start += len(entry)
        mark()
    return flat


def cat(features: Features, mark: Mark) -> list[Tensor]:
    """Call `torch.cat` once per batch."""
    flat = []
    for b in range(BATCHES):
        flat.append(torch.cat([features[k][b] for k in features]))
        mark()
    return flat


def flatten(features: Features, mark: Mark) -> list[Tensor]:
    """Call `goflat.flatten` once."""
    return goflat.flatten(features)


def consume(features: Features, mark: Mark) -> list[Tensor]:
    """Call `goflat.flatten_` once, and allow what torch.cat would take."""
    return goflat.flatten_(features, max_growth=_bytes(features))


# ---- the job ----


def apart(device: torch.device, rows: int) -> Features:
    """Return KEYS x BATCHES tensors of shape (rows, *ROW_SHAPE), float32."""
    shape = (rows, *ROW_SHAPE)
    return {str(k): [torch.rand(shape, device=device) for _ in range(BATCHES)] for k in range(KEYS)}


def parts(device: torch.device, rows: int) -> Features:
    """Return such a job whose entries are parts of one tensor, which nobody holds."""
    whole = torch.rand((KEYS * BATCHES * rows, *ROW_SHAPE), device=device)
    pieces = whole.chunk(KEYS * BATCHES)
    return {str(k): list(pieces[k * BATCHES : (k + 1) * BATCHES]) for k in range(KEYS)}


def collected(device: torch.device, rows: int) -> Features:
    """Return such a job whose entries lie in one address range."""
    with collect(device):
        return apart(device, rows)


def _bytes(features: Features) -> int:
    return sum(entry.nbytes for entries in features.values() for entry in entries)


class Way(NamedTuple):
    """How to flatten, and how the entries were made."""

    run: Callable[[Features, Mark], list[Tensor]]
    make: Callable[[torch.device, int], Features] = apart


WAYS = {
    "grow": Way(grow),
    "preallocate": Way(preallocate),
    "cat": Way(cat),
    "goflat": Way(flatten),
    "consume": Way(consume),
    "parts": Way(consume, parts),
    "collect": Way(consume, collected),
}


def ways(device: torch.device) -> dict[str, Way]:
    """Return the ways that differ on a device: only CUDA memory is collected."""
    return {name: way for name, way in WAYS.items() if device.type == "cuda" or name != "collect"}


# ---- memory ----


class Reading(NamedTuple):
    """Bytes above what there was at the start: at the worst moment, and held now."""

    peak: int
    held: int


class Meter(Protocol):
    """Measures what memory rises to between `start` and `read`."""

    method: str

    def start(self) -> None:
        """Forget what was before."""

    def read(self) -> Reading:
        """Return how far memory rose since `start`."""

    def extra(self) -> dict[str, int]:
        """Return other measures of the same rise, in bytes, by name."""


class HostMeter:
    """Resident memory of this process, as the kernel counts it.

    Writing 5 to /proc/self/clear_refs lowers the high-water mark VmHWM to what is resident now.
    Where that is not possible, `ru_maxrss` has to do: it never falls, so a rise shows only above
    what the process has used before.
    """

    method = "VmHWM of a fresh process, reset through /proc/self/clear_refs (whole pages)"

    def start(self) -> None:
        self._now = _status
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._now = _maxrss
            self.method = "ru_maxrss of a fresh process (whole pages)"
        self._before = self._now()

    def read(self) -> Reading:
        rise = zip(self._now(), self._before, strict=True)
        return Reading(*(max(0, now - before) for now, before in rise))

    def extra(self) -> dict[str, int]:
        return {}


def _status() -> Reading:
    found = re.findall(r"(VmHWM|VmRSS):\s*(\d+) kB", Path("/proc/self/status").read_text())
    kib = {name: int(value) for name, value in found}
    return Reading(kib["VmHWM"] * 1024, kib["VmRSS"] * 1024)


def _maxrss() -> Reading:
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Reading(most, most)


class CudaMeter:
    """What torch's caching allocator was asked for; `held` is what it took from the driver."""

    method = "requested_bytes.all.peak of torch's allocator"

    def start(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = self._counters()

    def read(self) -> Reading:
        rise = self._rise()
        return Reading(rise["requested"], rise["reserved"])

    def extra(self) -> dict[str, int]:
        return {"allocated": self._rise()["allocated"]}

    def _rise(self) -> dict[str, int]:
        now = self._counters(".peak")
        return {name: n - self._before[name] for name, n in now.items()}

    def _counters(self, which: str = ".current") -> dict[str, int]:
        stats = torch.cuda.memory_stats()
        requested = stats.get(f"requested_bytes.all{which}", 0)
        allocated = stats[f"allocated_bytes.all{which}"]
        reserved = stats["reserved_bytes.all.current"]
        return {
            # the cudaMallocAsync back end does not count requests
            "requested": requested or allocated,
            "allocated": allocated,
            "reserved": reserved,
        }


def _meter(device: torch.device) -> Meter:
    return CudaMeter() if device.type == "cuda" else HostMeter()


# ---- tasks, one process each ----


class Memory(NamedTuple):
    """What a way did to memory, in bytes above the level of the inputs."""

    inputs: int
    growth: int
    held: int
    planned: int | None  # growth, as goflat says it
    steps: list[int]
    extra: dict[str, int]
    equal: bool
    method: str


def memory(name: str, device_name: str | None, rows: int) -> Memory:
    """Run a way once and measure. Call this in a fresh process."""
    device = choose(device_name)
    way, meter = WAYS[name], _meter(device)
    _warm_up(way, device)
    features = way.make(device, rows)
    inputs, want = _bytes(features), cat(_on_the_host(features), _nothing)
    steps: list[int] = []
    meter.start()
    flat = way.run(features, lambda: steps.append(meter.read().peak))
    end, extra = meter.read(), meter.extra()
    equal = _equal([batch.cpu() for batch in flat], want)
    return Memory(inputs, *end, _planned(flat), steps, extra, equal, meter.method)


def _planned(flat: list[Tensor]) -> int | None:
    growth = flat.plan.growth if isinstance(flat, goflat.Flat) else None
    return growth if isinstance(growth, int) else None


def _on_the_host(features: Features) -> Features:
    """Return entries that do not count: the result to compare with is not to change the device."""
    return {key: [entry.cpu() for entry in entries] for key, entries in features.items()}


def times(device_name: str | None, rows: int) -> dict[str, float]:
    """Return the median seconds of each way, measured in turns."""
    device = choose(device_name)
    kept = apart(device, rows)
    samples: dict[str, list[float]] = {name: [] for name in ways(device)}
    end = perf_counter() + TIMED_S
    for _ in range(ROUNDS):
        for name, way in ways(device).items():
            features = way.make(device, rows) if way.run is consume else kept
            samples[name].append(_time(way.run, features, device))
        if perf_counter() > end:
            break
    return {name: median(values) for name, values in samples.items()}


def setting(device_name: str | None, rows: int) -> dict[str, Any]:
    """Say what the other tasks do, and on what."""
    device = choose(device_name)
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"{torch.get_num_threads()} threads"
    shape = [rows, *ROW_SHAPE]
    return {
        "job": {"keys": KEYS, "batches": BATCHES, "shape": shape, "dtype": "float32"},
        "environment": {
            "device": f"{device.type} ({name})",
            "goflat": goflat.__version__,
            "torch": torch.__version__,
            "extension": _doctor.extension()["text"],
        },
    }


def choose(name: str | None) -> torch.device:
    """Return the device of that name, by default the GPU if there is one, and make it current."""
    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.empty(0, device=wanted).device  # with its index; raises where there is none
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"it measures cpu and cuda, not {device.type}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _warm_up(way: Way, device: torch.device) -> None:
    """Take once, in small, what is not the way's memory: code pages, threads, modules."""
    torch.zeros(1, device=device).expand(1 << 22).sum().item()  # starts all threads, allocates 0
    way.run(way.make(device, 1), _nothing)


def _time(
    run: Callable[[Features, Mark], list[Tensor]], features: Features, device: torch.device
) -> float:
    _wait(device)
    start = perf_counter()
    flat = run(features, _nothing)
    _wait(device)
    seconds = perf_counter() - start
    del flat  # after the clock: freeing is the same for all ways
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _equal(got: list[Tensor], want: list[Tensor]) -> bool:
    """Compare bit for bit."""
    pairs = zip(got, want, strict=True)
    return all(torch.equal(g.view(torch.int32), w.view(torch.int32)) for g, w in pairs)


def _nothing() -> None:
    pass
