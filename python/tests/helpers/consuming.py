"""Jobs to consume: entries that are parts of one tensor that is dead, and what must be left."""

from __future__ import annotations

import random
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native

from .compare import assert_all_bits
from .jobs import tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    Features = dict[str, list[torch.Tensor]]


LOTS = 1 << 40  # bytes: as much growth as there may be
ROWS = ((2, 1), (0, 4), (3, 2))
native = pytest.mark.skipif(not _native.available(), reason="no extension")


def parts(
    rows: Sequence[Sequence[int]],
    row_shape: Sequence[int] = (3,),
    dtype: Any = None,
    *,
    order: int | None = None,
    gap: int = 0,
) -> Features:
    """Return a job whose entries are views of one tensor that nobody refers to any more.

    Parameters
    ----------
    rows : sequence of sequence of int
        ``rows[k][b]`` rows for key ``"k"`` and batch b.
    row_shape, dtype
        Of all entries.
    order : int, optional
        Seed of the order in which entries lie in memory; key-major by default.
    gap : int
        Rows between two entries that belong to nobody.
    """
    places = [(k, b) for k, line in enumerate(rows) for b in range(len(line))]
    if order is not None:
        random.Random(order).shuffle(places)
    total = sum(map(sum, rows)) + gap * len(places)
    whole = own((total, *row_shape), torch.float32 if dtype is None else dtype, total)
    cut, start = {}, 0
    for k, b in places:
        cut[k, b] = whole[start : start + rows[k][b]]
        start += rows[k][b] + gap
    return {str(k): [cut.pop((k, b)) for b in range(len(line))] for k, line in enumerate(rows)}


def own(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return random bits in memory of torch's own, unlike that of `jobs.tensor`."""
    whole = torch.empty(tuple(shape), dtype=dtype)
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(whole.untyped_storage())
    bytes_.copy_(tensor((bytes_.numel(),), torch.uint8, seed))
    if dtype is torch.bool:
        bytes_ &= 1
    return whole


def apart(rows: Sequence[Sequence[int]], row_shape: Sequence[int] = (3,)) -> Features:
    """Return a job whose entries are tensors of their own: on the CPU no two of them adjoin."""
    return {
        str(k): [own((n, *row_shape), torch.float32, 100 * k + b) for b, n in enumerate(line)]
        for k, line in enumerate(rows)
    }


def row_bytes(features: Features) -> int:
    """Return the bytes of a row of a job without (0,) entries."""
    first = next(iter(features.values()))[0]
    return prod(first.shape[1:]) * first.element_size()


def live() -> tuple[int, int, int]:
    """Return what the extension still has of calls: plans, adopted outputs, jobs."""
    core = _native._core
    if core is None:
        return 0, 0, 0
    return core.bridge_LiveInPlace(), core.bridge_LiveAdopted(), core.bridge_Live()


def new(rows: int = 4, seed: int = 1) -> torch.Tensor:
    """Return rows of 3 floats."""
    return own((rows, 3), torch.float32, seed)


def job() -> dict[str, list[Any]]:
    """Return entries of 2 keys and 2 batches that could all move within one storage."""
    return parts([[4, 2], [3, 5]], order=5)


def answer(features: Any) -> list[torch.Tensor]:
    """Return what the call must give, in memory of its own."""
    return list(goflat.flatten(features))  # which is tested against torch.cat in test_flatten


def consume(features: Any, **options: Any) -> goflat.Flat[Any]:
    """Flatten, compare with torch.cat, assert that nothing is left in `features`."""
    want = answer(features)
    flat = goflat.flatten_(features, **{"max_growth": LOTS, **options})
    copies = answer({"": list(flat)}) if flat else []  # memory that NumPy has seen is foreign
    assert_all_bits(copies, want)
    assert len(features) == 0
    return flat


def span(features: Features) -> tuple[int, int]:
    """Return the begin and end of the storage of the first entry."""
    storage = next(iter(features.values()))[0].untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def assert_inside(flat: list[torch.Tensor], bounds: tuple[int, int]) -> None:
    """Assert that all outputs lie in memory that the entries had, and apart from each other."""
    at = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in flat if len(t))
    assert all(bounds[0] <= lo < hi <= bounds[1] for lo, hi in at)
    assert all(hi <= lo for (_, hi), (lo, _) in pairwise(at))
