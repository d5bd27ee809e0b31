"""How long it takes to find out who else uses entries, and to plan with it.

No public call does the former alone, so this asks where `flatten_` does.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import goflat
from goflat import _ownership, _records

from .jobs import Job, plain, split
from .setup import Item, goal, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .jobs import Features, Rows
    from .setup import Setup

    Make = Callable[[Rows, tuple[int, ...], str], Features]

MANY = Job("64x32 of 8 short rows", 64, 32, 8, 8, (16,))
RAGGED = Job("64x32 of 1..15 short rows", 64, 32, 1, 15, (16,))
LIMIT_NS = 400
REPEATS = 9  # of each sample


def items(setup: Setup) -> Iterator[Item]:
    for name, make in ("plain tensors", plain), ("split views", split):
        facts = {"kind": "survey", "entries": name}
        yield Item(facts, partial(_survey, make, name, setup))
    for job in MANY, RAGGED:
        for lies, make in ("plain", plain), ("split", split):
            facts = {"kind": "plan", "job": job.name, "lies": lies}
            yield Item(facts, partial(_plan, job, make, setup))


def _survey(make: Make, name: str, setup: Setup) -> dict[str, Any]:
    """Time the survey of entries that nobody else uses, which looks at everything."""
    features = make(MANY.rows(0), MANY.row_shape, setup.device)
    grid = [entry for line in features.values() for entry in line]
    seconds = []
    for _ in range(REPEATS * setup.samples):
        start = perf_counter()
        records = _records.survey(grid, 1)
        seconds.append((perf_counter() - start) / len(grid))
    if records is None or records.kept():
        raise AssertionError("entries that nobody else uses count as held")
    found = numbers(seconds)
    each = 1e9 * found["median_s"]
    return {
        "count": len(grid),
        "quick": _ownership.is_quick(),
        "each": found,
        "ns": each,
        "goals": [goal(f"survey of {name}, an entry", each, LIMIT_NS, "ns")],
    }


def _plan(job: Job, make: Make, setup: Setup) -> dict[str, Any]:
    """Time goflat.plan, ownership included."""
    features = make(job.rows(0), job.row_shape, setup.device)
    seconds = []
    for _ in range(setup.samples):
        start = perf_counter()
        plan = goflat.plan(features, inplace=True)
        seconds.append(perf_counter() - start)
    return {"strategy": plan.strategy, "growth": plan.growth, "plan": numbers(seconds)}
