"""Our clock against those of libraries: do they tell the same?

Wall time: `torch.utils.benchmark.Timer`, which times one way alone, while ours lets ways take
turns. Device time: `triton.testing.do_bench`, which empties the cache and then starts the clock on
a GPU that has nothing to do, so that what the host takes to enqueue counts, while ours keeps the
GPU busy until all is enqueued. So do_bench should say as much as we do, or as much as wall time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.benchmark import Timer

from .measure import in_turns
from .steps import Step
from .ways import ways

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cases import Case
    from .steps import Effort
    from .ways import Way

JOBS = ("seed", "many small", "square")
WAYS = ("goflat", "loop", "copy")
LONGEST_BLOCK_S = 0.2
REPEAT_MS = 40  # of do_bench, for each way


def steps(cases: Sequence[Case], effort: Effort, device: str) -> list[Step]:
    """Return a step for each job that both clocks time."""
    chosen = [case for case in cases if case.name in JOBS and case.library == "torch"]
    cost_s = len(WAYS) * (effort.rounds + 10) * effort.block_s + 0.2

    def step(case: Case) -> Step:
        return Step("timers", case.name, cost_s, lambda: measure(case, effort, device))

    return [step(case) for case in chosen]


def measure(case: Case, effort: Effort, device: str) -> dict[str, Any]:
    """Return what each clock says, by way."""
    runs = ways("torch", case.features(device), WAYS).runs
    long = min(LONGEST_BLOCK_S, 10 * effort.block_s)
    found: dict[str, Any] = {
        "name": case.name,
        "title": case.title,
        "wall": {name: n["median_s"] for name, n in in_turns(runs, effort).items()},
        "Timer": {name: _alone(run, long) for name, run in runs.items()},
    }
    if device == "cuda":
        found |= _on_device(runs)
    return found


def _alone(run: Way, seconds: float) -> float:
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=seconds).median)


def _on_device(runs: dict[str, Way]) -> dict[str, Any]:
    from .device import sample  # needs nothing that a CPU lacks, but has no use there

    ours = sample(runs, cold=True)
    found: dict[str, Any] = {"device": {name: n["median_s"] for name, n in ours.items()}}
    bench = do_bench()
    if isinstance(bench, str):
        return {**found, "not measured": {"do_bench": bench}}
    return {**found, "do_bench": {name: bench(run) for name, run in runs.items()}}


def do_bench() -> Callable[[Way], float] | str:
    """Return Triton's clock, which tells the median in seconds, or why there is none."""
    try:
        from triton import testing
    except ImportError as why:
        return str(why)
    return lambda run: testing.do_bench(run, rep=REPEAT_MS, return_mode="median") / 1e3
