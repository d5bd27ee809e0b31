"""Ways to join, each with how its entries are made.

A way gets the dict and may empty it. It calls `mark` after each of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

from .jobs import MAKERS, plain
from .setup import ANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .jobs import Features, Rows

Mark = Callable[[str], None]
After = Callable[[Any, int], None]  # what becomes of the entries of a batch that was joined


class Way(NamedTuple):
    """One way, and what it needs."""

    title: str
    run: Callable[[Any, Mark], Sequence[Any]]
    make: Callable[[Rows, Sequence[int], str], Any] = MAKERS["plain"]
    cuda_only: bool = False


def grow(d: Features, mark: Mark) -> list[Any]:
    """Start with the first key's entries and add one key after the other."""
    return _grow(d.items(), mark)


def grow_and_drop(d: Features, mark: Mark) -> list[Any]:
    """Add one key after the other and give up its entries."""
    return _grow(((k, d.pop(k)) for k in list(d)), mark)


def _grow(lines: Iterable[tuple[str, list[Any]]], mark: Mark) -> list[Any]:
    flat: list[Any] = []
    for k, line in lines:
        if flat:
            for b in range(len(flat)):  # by index: a loop variable would hold an entry
                flat[b] = torch.cat([flat[b], line[b]])
        else:
            flat = list(line)
        mark(f"key {k}")
    return flat


def cat(d: Features, mark: Mark) -> list[Any]:
    """Call torch.cat once per batch."""
    return _cat(d, mark, _keep)


def cat_and_drop(d: Features, mark: Mark) -> list[Any]:
    """Call torch.cat once per batch and give up its entries."""
    return _cat(d, mark, _drop)


def _cat(d: Features, mark: Mark, after: After) -> list[Any]:
    flat = []
    for b in range(_batches(d)):
        flat.append(torch.cat(_column(d, b)))
        after(d, b)
        mark(f"batch {b}")
    return flat


def preallocate(d: Features, mark: Mark) -> list[Any]:
    """Make outputs of the final size and copy each entry into its slice."""
    return _preallocate(d, mark, _keep)


def preallocate_and_empty(d: Features, mark: Mark) -> list[Any]:
    """Preallocate, give entries up when they are copied, and empty the cache: as often advised."""
    return _preallocate(d, mark, _drop_and_empty)


def _preallocate(d: Features, mark: Mark, after: After) -> list[Any]:
    flat = _outputs(d)
    mark("outputs")
    for b, out in enumerate(flat):
        _fill(out, _column(d, b))
        after(d, b)
        mark(f"batch {b}")
    return flat


def _keep(d: Features, b: int) -> None:
    """Leave the entries of a batch where they are."""


def _drop(d: Features, b: int) -> None:
    """Give up the entries of a batch."""
    for line in d.values():
        line[b] = None  # type: ignore[call-overload]


def _drop_and_empty(d: Features, b: int) -> None:
    """Give up the entries of a batch, and what the allocator keeps of them."""
    _drop(d, b)
    torch.cuda.empty_cache()


def flatten(d: Features, mark: Mark) -> list[Any]:
    return _marked(goflat.flatten(d), mark)


def consume(d: Features, mark: Mark) -> list[Any]:
    return _marked(goflat.flatten_(d, max_growth=ANY), mark)


def arena(rows: Rows, row_shape: Sequence[int], device: str) -> Any:
    """Return an arena whose slots producers have written to."""
    made = goflat.Arena(goflat.Layout.of(plain(rows, row_shape, device)))
    for line in made.values():
        for slot in line:
            torch.rand(slot.shape, out=slot)
    return made


def look(slots: Any, mark: Mark) -> list[Any]:
    return _marked(slots.flat, mark)


def _marked(flat: list[Any], mark: Mark) -> list[Any]:
    mark("joined")
    return flat


def _column(d: Features, b: int) -> list[Any]:
    return [line[b] for line in d.values()]


def _batches(d: Features) -> int:
    return len(next(iter(d.values())))


def _outputs(d: Features) -> list[Any]:
    batches = range(_batches(d))
    like = d[next(iter(d))][0]
    return [like.new_empty(sum(map(len, _column(d, b))), *like.shape[1:]) for b in batches]


def _fill(out: Any, column: list[Any]) -> None:
    start = 0
    for entry in column:
        out[start : start + len(entry)].copy_(entry)
        start += len(entry)


WAYS = {
    "grow": Way("torch.cat, key after key", grow),
    "grow, dropping": Way("torch.cat, key after key, inputs dropped", grow_and_drop),
    "cat": Way("torch.cat per batch, inputs kept", cat),
    "cat, dropping": Way("torch.cat per batch, inputs dropped", cat_and_drop),
    "preallocate": Way("preallocate, copy slices", preallocate),
    "preallocate, emptying": Way(
        "preallocate, copy, drop, empty_cache", preallocate_and_empty, cuda_only=True
    ),
    "flatten": Way("goflat.flatten", flatten),
    "flatten_": Way("goflat.flatten_", consume),
    "collect": Way("collect(), goflat.flatten_", consume, MAKERS["collected"], cuda_only=True),
    "arena": Way("goflat.Arena", look, arena),
}
