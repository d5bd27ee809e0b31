"""collect(): growth of random jobs made inside, and what the context costs producers and device."""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import goflat

from .jobs import (
    MAKERS,
    RAGGED,
    RAGGED_2,
    SEED,
    SMALL,
    SPREADS,
    Job,
    check,
    draw,
    filled,
    oracle,
)
from .meters import clear, meter, wait
from .setup import ANY, Item, goal, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .jobs import Features, Rows
    from .meters import Bytes
    from .setup import Setup

CHUNK = 64 << 20  # mapped at a time
PAGE = 2 << 20  # the driver's
PRODUCERS = (
    (SEED, "produced"),
    (SEED, "convolved"),
    (SPREADS[-1], "produced"),
    (RAGGED_2, "produced"),
)
BESIDES = ((SEED, "plain"), (SMALL, "split"), (RAGGED, "split"), (SPREADS[-1], "collected"))


def items(setup: Setup) -> Iterator[Item]:
    if not setup.cuda:
        return
    for job, lies in BESIDES:
        facts = {"kind": "besides", "job": job.name, "lies": lies}
        yield Item(facts, partial(_besides, job, lies, setup))
    for job, way in PRODUCERS:
        facts = {"kind": "producers", "job": job.name, "way": way}
        yield Item(facts, partial(_producers, job, way, setup))
    yield Item({"kind": "growth"}, partial(_growth, setup))


# ---- growth ----


def _growth(setup: Setup) -> dict[str, Any]:
    """Join random jobs whose producers made temporaries; each must grow by 0 B."""
    rises: list[Bytes] = []
    strategies: Counter[str] = Counter()
    errors: list[str] = []
    for seed in setup.draws(1):
        try:
            rise, strategy = _one(seed, setup)
            rises.append(rise)
            strategies[strategy] += 1
        except Exception as error:
            errors.append(f"seed {seed}: {type(error).__name__}: {error}")
            if len(errors) > 4:
                break
    zero = {kind: sum(rise[kind] <= 0 for rise in rises) for kind in rises[0]} if rises else {}
    grew = len(rises) - zero.get("requested", 0)
    found = {
        "draws": len(rises),
        "zero": zero,
        "strategies": dict(strategies),
        "worst": {kind: max(rise[kind] for rise in rises) for kind in zero},
        "bytes": sum(draw(seed, setup.shrink).bytes for seed in setup.draws(1)),
        "goals": [goal("collected random jobs that grew", grew, 0, "")],
    }
    return {**found, "error": "\n".join(errors)} if errors else found


def _one(seed: int, setup: Setup) -> tuple[Bytes, str]:
    with goflat.collect():
        features = filled(draw(seed, setup.shrink), seed, setup.device)
    want, found = oracle(features), meter(setup)
    found.start()
    flat = goflat.flatten_(features, max_growth=ANY)
    rise = found.rise()
    check(flat, want)
    return rise, flat.plan.strategy


# ---- producers ----


def _producers(job: Job, way: str, setup: Setup) -> dict[str, Any]:
    """Time making entries inside a context, the context included, and outside, in turns."""
    rows = job.rows(0, setup.shrink)

    def inside() -> Features:
        with goflat.collect():
            return outside()

    def outside() -> Features:
        made: Features = MAKERS[way](rows, job.row_shape, setup.device)
        return made

    _seconds(inside, setup)  # code is loaded
    first, mapped = zip(*(_first(inside, setup) for _ in range(3)), strict=True)
    _seconds(outside, setup)
    pairs = [(_seconds(inside, setup), _seconds(outside, setup)) for _ in range(2 * setup.samples)]
    within, beside = zip(*pairs, strict=True)
    chunks = max(1.0, median(mapped) / CHUNK)
    extra_us = 1e6 * (median(first) - median(beside)) / chunks
    ratio = median(within) / median(beside)
    return {
        "bytes": job.bytes(rows),
        "mapped": median(mapped),
        "inside": numbers(within),
        "outside": numbers(beside),
        "first": numbers(first),
        "first_extra_us": extra_us,  # per 64 MiB mapped
        "ratio": ratio,
        "goals": [
            goal(f"producers inside, {job.name}, {way}", ratio, 1.05),
            goal(f"first context, {job.name}, {way}, per 64 MiB", extra_us, 150, "µs"),
        ],
    }


def _seconds(make: Callable[[], Features], setup: Setup) -> float:
    """Return seconds of making entries; they are joined and dropped off the clock."""
    wait(setup)
    start = perf_counter()
    features = make()
    wait(setup)
    seconds = perf_counter() - start
    goflat.flatten_(features, max_growth=ANY)
    return seconds


def _first(inside: Callable[[], Features], setup: Setup) -> tuple[float, int]:
    """Return seconds of a context before which nothing was mapped, and bytes it mapped."""
    clear(setup)
    free = torch.cuda.mem_get_info()[0]
    start = perf_counter()
    features = inside()
    wait(setup)
    seconds = perf_counter() - start
    mapped = free - torch.cuda.mem_get_info()[0]
    goflat.flatten_(features, max_growth=ANY)
    return seconds, mapped


# ---- bytes besides torch's ----


def _besides(job: Job, lies: str, setup: Setup) -> dict[str, Any]:
    """Return how many bytes of the device a warmed-up call takes that torch does not count."""
    rows = job.rows(0, setup.shrink)

    def make(of: Rows) -> Features:
        made: Features = MAKERS[lies](of, job.row_shape, setup.device)
        return made

    clear(setup)
    _call(lambda: make([[1 + n % 2 for n in range(job.batches)] for _ in range(job.keys)]))
    taken, tables, held = _call(lambda: make(rows))
    again, _, _ = _call(lambda: make(rows))
    limit = -(-tables // PAGE) * PAGE
    name = f"{job.name}, {lies}"
    return {
        "bytes": job.bytes(rows),
        "tables": tables,
        "taken": taken,
        "again": again,
        "held": held,
        "goals": [goal(f"bytes besides torch's, {name}", taken, limit, "B")],
    }


def _call(make: Callable[[], Features]) -> tuple[int, int, int]:
    """Return what a call took from the driver besides torch's, its tables, and goflat's own."""
    features = make()
    torch.cuda.synchronize()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    flat = goflat.flatten_(features, max_growth=ANY)
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0]
    taken -= max(0, torch.cuda.memory_reserved() - reserved)
    return taken, flat.plan.tables, sum(goflat.memory().values())
