"""Jobs, and the ways in which their entries come to lie in memory.

No function leaves a reference to an entry behind: one in a loop variable would count as held.
"""

from __future__ import annotations

import random
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

import goflat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    Features = dict[str, list[Tensor]]
    Rows = list[list[int]]  # by key and batch

ROI = (256, 7, 7)  # a row of RoI features: 50,176 bytes of float32
ELEM_BYTES = 4


class Job(NamedTuple):
    """Keys x batches entries of (rows, \\*row_shape) float32, rows drawn from `least` to `most`."""

    name: str
    keys: int
    batches: int
    least: int
    most: int
    row_shape: tuple[int, ...] = ROI

    def rows(self, seed: int, shrink: int = 1) -> Rows:
        """Return the rows of each entry in the draw of that number."""
        r = random.Random(seed)
        least, most = max(1, self.least // shrink), max(1, self.most // shrink)
        return [[r.randint(least, most) for _ in range(self.batches)] for _ in range(self.keys)]

    def bytes(self, rows: Rows) -> int:
        return sum(map(sum, rows)) * prod(self.row_shape) * ELEM_BYTES

    @property
    def ragged(self) -> bool:
        return self.least < self.most


SEED = Job("seed job", 4, 4, 50, 50)
SPREADS = (
    SEED,
    Job("rows 45..55", 4, 4, 45, 55),
    Job("rows 30..70", 4, 4, 30, 70),
    Job("rows 1..100", 4, 4, 1, 100),
    Job("4x8, rows 1..256", 4, 8, 1, 256),
)
UNIFORM = Job("3.2 GB uniform", 8, 8, 1000, 1000)
RAGGED = Job("3.2 GB ragged", 8, 8, 1, 2000)
RAGGED_2 = Job("1.9 GB ragged", 16, 16, 1, 300)
SMALL = Job("39 MB ragged", 4, 4, 1, 100)
SMALLER = Job("23 MB ragged", 6, 5, 1, 120, (64, 7, 7))


# ---- where entries lie ----


def plain(rows: Rows, row_shape: Sequence[int], device: str) -> Features:
    """Return entries in memory of their own."""
    return {
        str(k): [torch.rand((n, *row_shape), device=device) for n in line]
        for k, line in enumerate(rows)
    }


def split(rows: Rows, row_shape: Sequence[int], device: str) -> Features:
    """Return views of one tensor that nobody else refers to, as after pooling all at once."""
    base = torch.rand((sum(map(sum, rows)), *row_shape), device=device)
    parts = iter(base.split([n for line in rows for n in line]))
    return {str(k): [next(parts) for _ in line] for k, line in enumerate(rows)}


def produced(rows: Rows, row_shape: Sequence[int], device: str) -> Features:
    """Return entries that took temporaries of other sizes to make."""

    def entry(n: int) -> Tensor:
        return (torch.rand((n + 3, *row_shape), device=device)[:n] * 2).relu_()

    return {str(k): [entry(n) for n in line] for k, line in enumerate(rows)}


def convolved(rows: Rows, row_shape: Sequence[int], device: str) -> Features:
    """Return entries that a small network made: more work for a byte than `produced`."""
    channels = row_shape[0]
    weight = torch.rand((channels, channels, 3, 3), device=device)

    def entry(n: int) -> Tensor:
        return torch.conv2d(torch.rand((n, *row_shape), device=device), weight, padding=1).relu_()

    return {str(k): [entry(n) for n in line] for k, line in enumerate(rows)}


def collected(rows: Rows, row_shape: Sequence[int], device: str) -> Features:
    """Return what was produced inside collect()."""
    with goflat.collect():
        return produced(rows, row_shape, device)


MAKERS = {
    "plain": plain,
    "split": split,
    "produced": produced,
    "convolved": convolved,
    "collected": collected,
}


def write(features: Features, value: float) -> None:
    """Write to all entries, on the current stream."""
    for line in features.values():
        for entry in line:
            entry.fill_(value)


def oracle(features: Features) -> list[Tensor]:
    """Return what `flatten` must give."""
    return [torch.cat(column) for column in zip(*features.values(), strict=True)]


def check(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Assert that outputs have the bits they should."""
    if [out.shape for out in got] != [w.shape for w in want]:
        raise AssertionError(f"got shapes {[tuple(out.shape) for out in got]}")
    for b, (out, w) in enumerate(zip(got, want, strict=True)):
        if not torch.equal(_bits(out), _bits(w)):
            raise AssertionError(f"batch {b} has other values than torch.cat gives")


def _bits(t: Tensor) -> Tensor:
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.itemsize])


# ---- random jobs ----


class Draw(NamedTuple):
    """The shape of a random job; the same for the same seed."""

    rows: Rows
    row_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return sum(map(sum, self.rows)) * prod(self.row_shape) * self.dtype.itemsize


def draw(seed: int, shrink: int = 1) -> Draw:
    """Return a random job of at most about 350 MB."""
    r = random.Random(seed)
    shape = r.choice((ROI, ROI, (64, 7, 7), (1024,), (33, 5), (3,)))
    most = max(1, r.choice((5, 60, 250)) // shrink)
    batches = r.randint(1, 6)
    rows = [[max(0, r.randint(-1, most)) for _ in range(batches)] for _ in range(r.randint(1, 6))]
    rows[0][0] += not any(map(sum, rows))
    dtype = r.choice((torch.float32, torch.float32, torch.float16, torch.uint8, torch.int64))
    return Draw(rows, shape, dtype)


def filled(draw: Draw, seed: int, device: str) -> Features:
    """Return entries of random bytes, made with temporaries of random sizes in between."""
    r = random.Random(seed)

    def entry(n: int) -> Tensor:
        extra = r.randint(0, 40)
        source = torch.randint(0, 120, (n + extra, *draw.row_shape), device=device)
        return source[extra:].to(draw.dtype, copy=True)

    return {str(k): [entry(n) for n in line] for k, line in enumerate(draw.rows)}
