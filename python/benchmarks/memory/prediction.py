"""Plans of random jobs against what then happened; some entries are held, by all sorts of holders.

Entries are made one by one, so that their memory lies in torch's segments as it comes.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import goflat

from .jobs import check, draw, filled, oracle
from .meters import clear, meter
from .setup import Item, exactly, goal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from .jobs import Features
    from .meters import Bytes
    from .setup import Setup

LARGE = 1 << 20  # bytes from which torch leaves up to 1 MiB of a block unused
GRANULE = 512  # below, it rounds up to a multiple of this


class Outcome(NamedTuple):
    """One job."""

    seed: int
    strategy: str
    held: int
    bytes: int
    predicted: int
    reserved_bound: int
    slack: int  # that allocated bytes may differ
    measured: Bytes

    @property
    def exact(self) -> bool:
        return self.predicted == self.measured["requested"]

    @property
    def allocated_off(self) -> int:
        return self.measured["allocated"] - self.predicted

    @property
    def within(self) -> bool:
        return abs(self.allocated_off) <= self.slack

    @property
    def bounded(self) -> bool:
        return self.measured["reserved"] <= self.reserved_bound


def items(setup: Setup) -> Iterator[Item]:
    if setup.cuda:
        yield Item({"mode": setup.mode}, partial(_all, setup))


def _all(setup: Setup) -> dict[str, Any]:
    outcomes, errors = [], []
    for seed in setup.draws(1):
        try:
            outcomes.append(_one(seed, setup))
        except Exception as error:
            errors.append(f"seed {seed}: {type(error).__name__}: {error}")
            if len(errors) > 4:
                break
    found = _summary(outcomes, setup)
    return {**found, "error": "\n".join(errors)} if errors else found


def _one(seed: int, setup: Setup) -> Outcome:
    """Plan a job, run it, and compare numbers, results and what is held."""
    clear(setup)
    job, r = draw(seed, setup.shrink), random.Random(-seed)
    features = filled(job, seed, setup.device)
    held = _hold(features, r)
    want, before = oracle(features), [t.clone() for t in held]
    blocks = [t.nbytes for line in features.values() for t in line] + [w.nbytes for w in want]
    count, found = len(held), meter(setup)
    clear(setup)  # so that what is reserved meanwhile shows
    plan = goflat.plan(features, inplace=True)
    found.start()
    growth, reserved = exactly(plan.growth), exactly(plan.reserved_growth)
    flat = goflat.flatten_(features, max_growth=growth)
    rise = found.rise()
    check(flat, want)
    check(held, before)
    slack = sum(LARGE if size > LARGE else GRANULE for size in blocks if size)
    expected = plan.strategy, count, job.bytes, growth, reserved, slack
    return Outcome(seed, *expected, rise)


def _hold(features: Features, r: random.Random) -> Sequence[Tensor]:
    """Hold some entries: by name, by a view, or by their storage's other users; none in a third."""
    share = r.choice((0, 0, 0.1, 0.5))
    held: list[Tensor] = []
    for line in features.values():
        for entry in line:
            if r.random() < share:
                held.append(r.choice((entry, entry.detach(), entry[:1])))
    return held


def _summary(outcomes: Sequence[Outcome], setup: Setup) -> dict[str, Any]:
    wrong = [o for o in outcomes if not (o.exact and o.within and o.bounded)]
    strategies = [o.strategy for o in outcomes]
    return {
        "draws": len(outcomes),
        "grew": sum(o.predicted > 0 for o in outcomes),
        "with_held": sum(o.held > 0 for o in outcomes),
        "bytes": sum(o.bytes for o in outcomes),
        "strategies": {name: strategies.count(name) for name in sorted(set(strategies))},
        "exact": sum(o.exact for o in outcomes),
        "within": sum(o.within for o in outcomes),
        "bounded": sum(o.bounded for o in outcomes),
        "allocated_off": _range([o.allocated_off for o in outcomes]),
        "wrong": [o._asdict() for o in wrong[:10]],
        "each": [[o.predicted, *o.measured.values(), o.reserved_bound] for o in outcomes],
        "goals": [
            goal(f"{what}, {setup.mode}", len(outcomes) - kept, 0, "")
            for what, kept in (
                ("requested not as predicted", sum(o.exact for o in outcomes)),
                ("allocated beyond the slack", sum(o.within for o in outcomes)),
                ("reserved beyond the bound", sum(o.bounded for o in outcomes)),
            )
        ],
    }


def _range(values: Sequence[int]) -> list[int]:
    return [min(values, default=0), max(values, default=0)]
