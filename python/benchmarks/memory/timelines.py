"""Memory after each step, to be plotted: of the seed job, and of a loop that accumulates."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import goflat

from .jobs import MAKERS, SEED
from .meters import clear, meter
from .setup import ANY, Item
from .ways import WAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from .setup import Setup
    from .ways import Mark

JOINED = ("grow", "cat", "cat, dropping", "preallocate", "flatten", "flatten_", "collect")
PARTS = 40  # results of the loop
PART = (1500, 1024)  # each: 6 MB of float32


class Timeline:
    """Levels and highest levels since the mark before, above the start."""

    def __init__(self, setup: Setup) -> None:
        clear(setup)
        self._meter = meter(setup)
        self._meter.start()
        self.record: dict[str, Any] = {"steps": [], "level": {}, "peak": {}}

    def mark(self, step: str) -> None:
        """End a step."""
        self.record["steps"].append(step)
        for which, values in (("level", self._meter.level()), ("peak", self._meter.rise())):
            for kind, count in values.items():
                self.record[which].setdefault(kind, []).append(count)
        self._meter.reset()


def items(setup: Setup) -> Iterator[Item]:
    """Return both jobs in each way."""
    for name in JOINED:
        if setup.cuda or not WAYS[name].cuda_only:
            facts = {"job": SEED.name, "way": name, "title": WAYS[name].title}
            yield Item(facts, partial(_seed, name, setup))
    for name, (title, run) in LOOPS.items():
        facts = {"job": "accumulate", "way": name, "title": title}
        yield Item(facts, partial(_loop, run, setup))


def _seed(name: str, setup: Setup) -> dict[str, Any]:
    line = Timeline(setup)
    features: dict[str, list[Any]] = {}
    context = goflat.collect() if name == "collect" else nullcontext()
    with context:
        for k, rows in enumerate(SEED.rows(0, setup.shrink)):
            features[str(k)] = MAKERS["plain"]([rows], SEED.row_shape, setup.device)["0"]
            line.mark(f"made key {k}")
    flat = WAYS[name].run(features, line.mark)
    features.clear()
    line.mark("inputs dropped")
    del flat
    return line.record


# ---- the loop ----


def _loop(run: Callable[[Setup, Mark], Tensor], setup: Setup) -> dict[str, Any]:
    line = Timeline(setup)
    out = run(setup, line.mark)
    line.mark("inputs dropped")
    nbytes = out.nbytes
    _compare(out)
    del out
    return {**line.record, "bytes": nbytes}


def _compare(out: Tensor) -> None:
    """Assert that part n consists of n."""
    for n, part in enumerate(out.chunk(PARTS)):
        if not bool((part == n).all()):
            raise AssertionError(f"part {n} has other values")


def _part(setup: Setup, n: int) -> Tensor:
    rows, columns = PART
    return torch.full((max(1, rows // setup.shrink), columns), float(n), device=setup.device)


def _growing(setup: Setup, mark: Mark) -> Tensor:
    out = _part(setup, 0)
    mark("part 0")
    for n in range(1, PARTS):
        out = torch.cat([out, _part(setup, n)])
        mark(f"part {n}")
    return out


def _preallocated(setup: Setup, mark: Mark) -> Tensor:
    rows = len(_part(setup, 0))
    out = torch.empty((PARTS * rows, PART[1]), device=setup.device)
    for n in range(PARTS):
        out[n * rows : (n + 1) * rows] = _part(setup, n)
        mark(f"part {n}")
    return out


def _accumulated(
    setup: Setup,
    mark: Mark,
    join: Callable[[list[Tensor]], Tensor],
    context: AbstractContextManager[Any],
) -> Tensor:
    parts: list[Tensor] = []
    with context:
        for n in range(PARTS):
            parts.append(_part(setup, n))
            mark(f"part {n}")
    out = join(parts)
    mark("joined")
    return out


def _at_the_end(setup: Setup, mark: Mark) -> Tensor:
    return _accumulated(setup, mark, torch.cat, nullcontext())


def _consumed(setup: Setup, mark: Mark) -> Tensor:
    return _accumulated(setup, mark, _cat_, nullcontext())


def _collected(setup: Setup, mark: Mark) -> Tensor:
    return _accumulated(setup, mark, _cat_, goflat.collect())


def _cat_(parts: list[Tensor]) -> Tensor:
    joined: Tensor = goflat.cat_(parts, max_growth=ANY)
    return joined


LOOPS = {
    "grow": ("torch.cat in each step", _growing),
    "cat": ("append, torch.cat at the end", _at_the_end),
    "preallocate": ("preallocate, copy slices", _preallocated),
    "cat_": ("append, goflat.cat_", _consumed),
    "collect": ("collect(), append, goflat.cat_", _collected),
}
