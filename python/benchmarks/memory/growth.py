"""Peak memory and time of each way, and when `flatten_` grows by nothing."""

from __future__ import annotations

from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import goflat

from .jobs import MAKERS, SEED, SPREADS, check, oracle
from .meters import clear, meter, wait
from .setup import ANY, Item, goal, numbers
from .ways import WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .jobs import Job
    from .meters import Bytes
    from .setup import Setup
    from .ways import Way

DRAWS = 0.025  # of the seeds: 5 of 200
SPREAD_DRAWS = 0.25
ZERO = {(SEED.name, "flatten_"), *((job.name, "collect") for job in SPREADS)}


def items(setup: Setup) -> Iterator[Item]:
    """Return the ways on each job, then the table of spreads."""
    for job in SPREADS if setup.cuda else SPREADS[:1]:
        for name, way in WAYS.items():
            if setup.cuda or not way.cuda_only:
                facts = {"kind": "ways", "mode": setup.mode, "job": job.name, "way": name}
                yield Item(facts, partial(_way, job, name, setup))
    if setup.cuda:
        for job in SPREADS:
            for lies in ("plain", "collected") if setup.mode == "default" else ("plain",):
                facts = {"kind": "spread", "mode": setup.mode, "job": job.name, "lies": lies}
                yield Item(facts, partial(_spread, job, lies, setup))


# ---- ways ----


def _way(job: Job, name: str, setup: Setup) -> dict[str, Any]:
    way, draws = WAYS[name], list(setup.draws(DRAWS)) if job.ragged else [0]
    _compare(job, way, setup)
    rises = [_growth(job, way, seed, setup) for seed in draws]
    sizes = [job.bytes(job.rows(seed, setup.shrink)) for seed in draws]
    seconds = [_seconds(job, way, draws[n % len(draws)], setup) for n in range(setup.samples)]
    first = next(iter(rises[0]))  # requested, or resident
    shares = [rise[first] / size for rise, size in zip(rises, sizes, strict=True)]
    return {
        "title": way.title,
        "bytes": round(median(sizes)),
        "draws": len(draws),
        "growth": _of_each(rises, median),
        "worst": _of_each(rises, max),
        "peak": 1 + median(shares),  # as a multiple of the inputs
        "worst_peak": 1 + max(shares),
        "time": numbers(seconds),
        "goals": _zero(job, name, rises, setup) if setup.cuda else [],
    }


def _zero(job: Job, name: str, rises: Sequence[Bytes], setup: Setup) -> list[dict[str, Any]]:
    """Return the goal of those that must not grow; the seed job in no way at all."""
    if (job.name, name) not in ZERO:
        return []
    worst = max(
        max(rise.values()) if job is SEED else max(rise["requested"], rise["allocated"])
        for rise in rises
    )
    return [goal(f"growth of {name}, {job.name}, {setup.mode}", worst, 0, "B")]


def _compare(job: Job, way: Way, setup: Setup) -> None:
    """Assert that the way gives the bits of torch.cat."""
    want = oracle(_features(job, way, 0, setup))
    check(way.run(_features(job, way, 0, setup), _nothing), want)


def _growth(job: Job, way: Way, seed: int, setup: Setup) -> Bytes:
    """Return how far memory rises where entries lie in fresh memory."""
    clear(setup)
    features, found = _features(job, way, seed, setup), meter(setup)
    found.start()
    flat = way.run(features, _nothing)
    rise = found.rise()
    del flat
    return rise


def _seconds(job: Job, way: Way, seed: int, setup: Setup) -> float:
    """Return the wall time, with the caches that earlier calls have left."""
    features = _features(job, way, seed, setup)
    wait(setup)
    start = perf_counter()
    flat = way.run(features, _nothing)
    wait(setup)
    seconds = perf_counter() - start
    del flat
    return seconds


def _features(job: Job, way: Way, seed: int, setup: Setup) -> Any:
    torch.manual_seed(seed)
    return way.make(job.rows(seed, setup.shrink), job.row_shape, setup.device)


def _nothing(_: str) -> None:
    pass


def _of_each(rises: Sequence[Bytes], choose: Any) -> Bytes:
    return {kind: round(choose([rise[kind] for rise in rises])) for kind in rises[0]}


# ---- spreads ----


def _spread(job: Job, lies: str, setup: Setup) -> dict[str, Any]:
    """Return in how many draws `flatten_` grows by 0 B, and what part of all bytes is spilled."""
    found = [_draw(job, lies, seed, setup) for seed in setup.draws(SPREAD_DRAWS)]
    growths, spilled, sizes = (list(column) for column in zip(*found, strict=True))
    zero = sum(growth == 0 for growth in growths)
    shares = [growth / size for growth, size in zip(growths, sizes, strict=True)]
    goals = [goal(f"{job.name}, collected: draws that grew", len(found) - zero, 0, "")]
    return {
        "draws": len(found),
        "zero": zero / len(found),
        "spilled": sum(spilled) / sum(sizes),
        "growth": median(shares),  # as a share of the inputs
        "worst": max(shares),
        "goals": goals if lies == "collected" else [],
    }


def _draw(job: Job, lies: str, seed: int, setup: Setup) -> tuple[int, int, int]:
    """Return growth, bytes of outputs that had to be allocated, and bytes of all."""
    clear(setup)
    rows = job.rows(seed, setup.shrink)
    features, found = MAKERS[lies](rows, job.row_shape, setup.device), meter(setup)
    found.start()
    flat = goflat.flatten_(features, max_growth=ANY)
    growth = next(iter(found.rise().values()))
    # torch can resize what it has allocated itself, and no output that lies in entries' memory.
    spilled = sum(out.nbytes for out in flat if out.untyped_storage().resizable())
    return growth, spilled, job.bytes(rows)
