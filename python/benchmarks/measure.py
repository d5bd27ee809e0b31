"""Timing: ways in turns, medians over all rounds."""

from __future__ import annotations

import gc
from itertools import repeat
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.timer import timer as now  # waits for the GPU, if there is one

from . import machine
from .steps import Step
from .ways import CONTRACTS, FLOORS, ways

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cases import Case
    from .steps import Effort
    from .ways import Way

IMPORT_LIMIT_S = 0.05  # goflat, after torch
IMPORT = (
    "import time, torch; s = time.perf_counter(); import goflat; print(time.perf_counter() - s)"
)
WAYS = 13  # about as many as a job has
IMPORT_S = 3.0  # of torch, roughly


def steps(cases: Sequence[Case], effort: Effort, device: str, imports: int) -> list[Step]:
    """Return a step for each case, and one for the import, if it is to be timed at all."""

    def step(case: Case) -> Step:
        cost_s = WAYS * effort.rounds * effort.block_s + 1
        return Step("cases", case.name, cost_s, lambda: measure(case, effort, device))

    found = [step(case) for case in cases]
    if imports:
        cost_s = IMPORT_S * imports
        found += [Step("extras", "import goflat", cost_s, lambda: import_time(imports))]
    return found


def measure(case: Case, effort: Effort, device: str = "cpu") -> dict[str, Any]:
    """Run all ways of a case; seconds and bytes."""
    prepared = ways(case.library, case.features(device), compile_most=effort.compile_most)
    check(prepared.runs)
    numbers = in_turns(prepared.runs, effort)
    return {
        **case._asdict(),
        "title": case.title,
        "bytes": case.bytes,
        "ways": numbers,
        "ratios": {name: _ratio(name, numbers) for name in CONTRACTS if _has(name, numbers)},
        "not measured": prepared.missing,
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


# ---- the clock ----


def in_turns(runs: dict[str, Way], effort: Effort) -> dict[str, Any]:
    """Time ways in turns; the clock waits for the GPU at the end of each block of calls."""
    calls = {name: _calls(run, effort.block_s) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for names in turns(list(runs), effort.rounds):
        for name in names:
            found[name].append(_block(runs[name], calls[name]))
    return {name: numbers(seconds) for name, seconds in found.items()}


def turns(names: list[str], rounds: int) -> list[list[str]]:
    """Return the order of each round: every one begins with the next name."""
    return [names[n % len(names) :] + names[: n % len(names)] for n in range(rounds)]


def _calls(run: Way, block_s: float) -> int:
    """Return how many calls make a block; so the way is warm as well."""
    _block(run, 1)
    if _block(run, 1) > block_s:
        return 1  # without the calls that it takes to find out more exactly
    took = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return max(1, round(block_s / took.blocked_autorange(min_run_time=block_s / 4).median))


def _block(run: Way, calls: int) -> float:
    """Return seconds a call; garbage is collected before, not meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        if calls > 1:
            run()  # so that what the ways before have left in caches hits no call that counts
        start = now()
        for _ in repeat(None, calls):
            run()
        return (now() - start) / calls
    finally:
        if collects:
            gc.enable()


def numbers(seconds: list[float]) -> dict[str, Any]:
    """Return median and spread."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return {"median_s": median(seconds), "iqr_s": high - low, "samples": len(seconds)}


# ---- ratios ----


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


# ---- bits ----


def check(runs: dict[str, Way]) -> None:
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
