"""Accumulate and join 2.6 GB on a device with room for one and a quarter of it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import goflat

from .meters import clear, meter, wait
from .setup import ANY, Item, goal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from .setup import Setup

PARTS = 5005
PART = (256, 1024)  # of float16: 512 KiB
DISTINCT = 2000  # integers up to here are exact
ROOM = 1.25

WAYS: dict[str, tuple[bool, Callable[[], AbstractContextManager[Any]], Any]] = {
    # whether it has to work, where parts are made, how they are joined
    "torch.cat": (False, nullcontext, torch.cat),
    "goflat.cat_": (False, nullcontext, lambda parts: goflat.cat_(parts, max_growth=ANY)),
    "collect(), torch.cat": (False, goflat.collect, torch.cat),
    "collect(), goflat.cat_": (
        True,
        goflat.collect,
        lambda parts: goflat.cat_(parts, max_growth=0),
    ),
}


def items(setup: Setup) -> Iterator[Item]:
    for name in WAYS if setup.cuda else ():
        yield Item({"way": name}, partial(_under_a_cap, name, setup))


def _under_a_cap(name: str, setup: Setup) -> dict[str, Any]:
    must, context, join = WAYS[name]
    count = PARTS // setup.shrink
    size = count * PART[0] * PART[1] * 2
    clear(setup)
    _model(0, setup)
    total = torch.cuda.mem_get_info()[1]
    cap = torch.cuda.memory_reserved() + round(ROOM * size)
    torch.cuda.set_per_process_memory_fraction(cap / total)
    try:
        found = _try(count, context, join, setup)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    failed = not found["succeeded"]
    goals = {
        True: [goal(f"{name} that fails", int(failed), 0, "")],
        False: [goal(f"{name} that works", int(not failed), 0, "")] * (name == "torch.cat"),
    }
    return {"bytes": size, "cap": cap, "parts": count, **found, "goals": goals[must]}


def _model(n: int, setup: Setup) -> Tensor:
    """Return a result that took a temporary to make."""
    return torch.full(PART, float(n % DISTINCT), dtype=torch.float16, device=setup.device) + 1


def _try(count: int, context: Any, join: Any, setup: Setup) -> dict[str, Any]:
    parts: list[Tensor] = []
    with context():
        for n in range(count):
            parts.append(_model(n, setup))
    wait(setup)
    found = meter(setup)
    found.start()
    start = perf_counter()
    try:
        out = join(parts)
    except RuntimeError as error:  # goflat's OutOfMemoryError is one as well
        first = str(error).partition("\n")[0]
        return {"succeeded": False, "why": f"{type(error).__name__}: {first[:200]}"}
    wait(setup)
    seconds = perf_counter() - start
    rise = found.rise()
    _compare(out, count)
    return {"succeeded": True, "seconds": seconds, "growth": rise}


def _compare(out: Tensor, count: int) -> None:
    """Assert that every part is there, a few at a time: there is little room."""
    for n, part in enumerate(out.split(PART[0])):
        if not bool((part == n % DISTINCT + 1).all()):
            raise AssertionError(f"part {n} of {count} has other values")
