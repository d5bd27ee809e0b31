"""Timing: ways in turns, medians over all rounds."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.benchmark import Measurement, Timer

from . import machine
from .ways import CONTRACTS, FLOORS, ways

if TYPE_CHECKING:
    from .cases import Case
    from .ways import Way

IMPORT_LIMIT_S = 0.05  # goflat, after torch
IMPORT = (
    "import time, torch; s = time.perf_counter(); import goflat; print(time.perf_counter() - s)"
)


class Effort(NamedTuple):
    """How long to measure: rounds over all ways, and seconds of each way in a round."""

    rounds: int = 15
    block_s: float = 0.02


def measure(case: Case, effort: Effort, device: str = "cpu") -> dict[str, Any]:
    """Run all ways of a case; seconds and bytes."""
    runs = ways(case.library, case.features(device))
    _check(runs)
    numbers = in_turns(runs, effort)
    return {
        **case._asdict(),
        "title": case.title,
        "bytes": case.bytes,
        "ways": numbers,
        "ratios": {name: _ratio(name, numbers) for name in CONTRACTS if _has(name, numbers)},
    }


def import_time(repeats: int) -> dict[str, Any]:
    """Return how long ``import goflat`` takes in new processes that have imported torch."""
    outputs = [machine.python("-c", IMPORT) for _ in range(repeats)]
    return {
        "name": "import goflat, after torch",
        "seconds": median(map(float, outputs)),
        "limit_s": IMPORT_LIMIT_S,
    }


def overhead(case: dict[str, Any]) -> dict[str, Any]:
    """Return what goflat costs beyond the plain loop."""
    found = case["ways"]
    seconds = found["goflat"]["median_s"] - found["loop"]["median_s"]
    return {"name": f"goflat minus loop, {case['title']}", "seconds": seconds}


def in_turns(runs: dict[str, Way], effort: Effort) -> dict[str, Any]:
    """Time ways in turns; the clock waits for the GPU at the end of each block of calls."""
    threads = torch.get_num_threads()
    timers = {n: Timer("run()", globals={"run": r}, num_threads=threads) for n, r in runs.items()}
    found: dict[str, list[Measurement]] = {name: [] for name in runs}
    names = list(runs)
    for n in range(effort.rounds):
        turn = n % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(timers[name].blocked_autorange(min_run_time=effort.block_s))
    return {name: _numbers(Measurement.merge(parts)[0]) for name, parts in found.items()}


def _numbers(found: Measurement) -> dict[str, Any]:
    return {"median_s": found.median, "iqr_s": found.iqr, "samples": len(found.times)}


def _has(contract: str, numbers: dict[str, Any]) -> bool:
    """Tell whether both sides were measured."""
    own, others, _ = CONTRACTS[contract]
    return own in numbers and any(name in numbers for name in others)


def _ratio(contract: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the fastest other way, and how often goflat's time fits into its."""
    own, others, _ = CONTRACTS[contract]
    found = [name for name in others if name in numbers]
    best = min(found, key=lambda name: float(numbers[name]["median_s"]))
    return {"best": best, "ratio": numbers[best]["median_s"] / numbers[own]["median_s"]}


def _check(runs: dict[str, Way]) -> None:
    """Assert that all ways give the same bits."""
    want = list(runs["loop"]())
    for name in runs.keys() - FLOORS:
        if not all(_same(g, w) for g, w in zip(runs[name](), want, strict=True)):
            raise AssertionError(f"{name} gives other values than the loop")


def _same(got: Any, want: Any) -> bool:
    """Compare the bits of two float32 arrays of one framework."""
    if isinstance(want, torch.Tensor):
        return torch.equal(got.view(torch.int32), want.view(torch.int32))
    return bool((got.shape == want.shape) and (got.view("i4") == want.view("i4")).all())
