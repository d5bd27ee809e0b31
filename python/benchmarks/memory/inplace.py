"""Time of `flatten_` next to a memcpy of the same bytes in the same state of L2.

On a GPU that of the device alone; beside it what planning takes on the host, and the whole call.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

from . import clocks
from .clocks import Subject
from .jobs import (
    MAKERS,
    RAGGED,
    RAGGED_2,
    SEED,
    SMALL,
    SMALLER,
    SPREADS,
    UNIFORM,
    check,
    oracle,
    write,
)
from .meters import clear, meter
from .setup import ANY, Item, exactly, goal, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from .jobs import Features, Job
    from .setup import Setup

PLANS = 5
ON_CPU = 1 << 26  # bytes of the largest job there


class Timed(NamedTuple):
    """A job, where its entries lie, and what its time may be as a multiple of memcpy's."""

    job: Job
    lies: str
    limit: float


TIMED = (
    Timed(SEED, "plain", 1.0),
    Timed(SEED, "split", 1.0),
    Timed(UNIFORM, "split", 1.03),
    Timed(RAGGED, "split", 1.09),
    Timed(RAGGED_2, "split", 1.15),
    Timed(SMALL, "split", 1.2),
    Timed(SMALLER, "split", 1.2),
    Timed(SEED, "collected", 2.2),
    Timed(UNIFORM, "collected", 2.2),
    Timed(RAGGED, "collected", 2.2),
    Timed(RAGGED_2, "collected", 2.2),
    Timed(SPREADS[-1], "collected", 2.2),
    Timed(SMALL, "collected", 2.2),
    Timed(SMALLER, "collected", 2.2),
)


def items(setup: Setup) -> Iterator[Item]:
    """Return the jobs; on a CPU those in one storage, which is where they can be done in place."""
    for timed in TIMED:
        size = timed.job.bytes(timed.job.rows(0, setup.shrink))
        if setup.cuda or (timed.lies == "split" and size < ON_CPU):
            facts = {"job": timed.job.name, "lies": timed.lies, "bytes": size}
            yield Item(facts, partial(_measure, timed, setup))


def _measure(timed: Timed, setup: Setup) -> dict[str, Any]:
    clear(setup)
    rows = timed.job.rows(0, setup.shrink)
    shape, size = timed.job.row_shape, timed.job.bytes(rows)

    def make() -> Features:
        made: Features = MAKERS[timed.lies](rows, shape, setup.device)
        return made

    growths: list[int] = []  # as planned, of each sample

    def consume(d: Features) -> Any:
        flat = goflat.flatten_(d, max_growth=ANY)
        growths.append(exactly(flat.plan.growth))
        return flat

    facts = _first(make(), consume, setup)
    clear(setup)  # later entries lie as the first did, not in what was left of others
    ours = Subject(make, lambda d: write(d, 1.0), consume)
    states = _states(ours, _memcpy(size, setup), setup)
    name = f"{timed.job.name}, {timed.lies}"
    limits = [
        goal(f"{name}, {state} L2", found["ratio"], timed.limit) for state, found in states.items()
    ]
    if setup.cuda:
        growth = max(facts["growth"]["requested"], *growths)
        limits.append(goal(f"growth of {name}", growth, 0, "B"))
    plans = numbers([_plan_seconds(make()) for _ in range(PLANS)])
    facts["planned_growth"] = [min(growths), max(growths)]
    return {**facts, "states": states, "plan": plans, "goals": limits}


def _memcpy(size: int, setup: Setup) -> Subject:
    source = torch.empty(size, dtype=torch.uint8, device=setup.device)
    target = torch.empty_like(source)
    return Subject(lambda: source, lambda s: s.fill_(1), target.copy_)


def _first(d: Features, consume: Callable[[Features], Any], setup: Setup) -> dict[str, Any]:
    """Make the call once, compare all bits, and return what it cost."""
    want, found = oracle(d), meter(setup)
    found.start()
    flat = consume(d)
    growth = found.rise()
    check(flat, want)
    said = flat.plan.to_dict()
    names = ("strategy", "tables", "outputs", "outputs_in_place", "rows", "moved_rows")
    return {"growth": growth, **{name: said[name] for name in names}}


def _plan_seconds(d: Features) -> float:
    start = perf_counter()
    goflat.plan(d, inplace=True)
    return perf_counter() - start


def _states(ours: Subject, memcpy: Subject, setup: Setup) -> dict[str, Any]:
    if not setup.cuda:
        return {"warm": _in_turns(ours, memcpy, setup)}
    flush = torch.empty(clocks.FLUSH_BYTES, dtype=torch.uint8, device=setup.device)
    return {
        "cold": _in_turns(ours, memcpy, setup, flush),
        "warm": _in_turns(ours, memcpy, setup),
    }


def _in_turns(
    ours: Subject, memcpy: Subject, setup: Setup, flush: Tensor | None = None
) -> dict[str, Any]:
    """Time both in turns, first all of a call, then what the device takes of it."""
    pairs = range(setup.samples)
    whole = [(clocks.wall(ours, setup, flush), clocks.wall(memcpy, setup, flush)) for _ in pairs]
    found = {
        "whole": numbers([mine.whole for mine, _ in whole]),
        "host": numbers([mine.host for mine, _ in whole]),
        "memcpy whole": numbers([floor.whole for _, floor in whole]),
    }
    if not setup.cuda:
        ratio = found["whole"]["median_s"] / found["memcpy whole"]["median_s"]
        return {**found, "ratio": ratio}
    host = median(mine.host for mine, _ in whole)
    device = [(clocks.device(ours, host, flush), clocks.device(memcpy, host, flush)) for _ in pairs]
    mine = numbers([mine.whole for mine, _ in device])
    floor = numbers([floor.whole for _, floor in device])
    return {
        **found,
        "device": mine,
        "memcpy": floor,
        "host while asleep": numbers([mine.host for mine, _ in device]),
        "ratio": mine["median_s"] / floor["median_s"],
    }
