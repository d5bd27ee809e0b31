"""The ``dtype=`` option: entries are converted while they are copied, or before.

Tensors of floating-point numbers are converted into their place, one pass and no temporaries.
Everything else is converted first, by its own framework, and then joined like any entries.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from . import _fallback
from ._errors import make, of_memory
from ._kinds import arrays_of, refuse
from ._layout import describe, meant

if TYPE_CHECKING:
    from ._features import Features
    from ._flat import Flat
    from ._kinds import Arrays


def fused(table: Features, outs: Any, dim: int, dtype: Any, packed: bool) -> Flat[Any] | None:
    """Join entries and convert them on the way; None where they have to be converted first."""
    if not table.grid:
        return None
    arrays = arrays_of(table)
    if not fuses(arrays, table.grid, dtype):
        return None
    from ._converting import Converting

    refuse(arrays, table.grid, table.place)
    layout = describe(meant(table, dtype), dim)
    into = Converting(dtype)
    flat = _fallback.join(table, layout, into, table.grid[0], outs, packed)
    flat._cast = into.temporary
    return flat


def fuses(arrays: Arrays, entries: list[Any], dtype: Any) -> bool:
    """Report whether `entries` are converted in the copy; some have to be of another dtype."""
    if type(arrays).__module__ != "goflat._torch":
        return False
    from ._converting import converts

    return converts(arrays, entries, dtype)


def temporary(entries: list[Any], dim: int, dtype: Any) -> int:
    """Return what `Converting.temporary` will be for new outputs."""
    from ._converting import is_direct

    waiting = (e for e in entries if e.dtype != dtype and not is_direct(e, dim))
    return max((prod(entry.shape) * dtype.itemsize for entry in waiting), default=0)


def cast(table: Features, dtype: Any) -> tuple[Features, int]:
    """Return `table` with entries of `dtype`, and the bytes of those that are new.

    Entries that have the dtype already are the same objects.
    """
    if not table.grid:
        return table, 0
    from ._plan import itemsize

    arrays = arrays_of(table)
    entries = arrays.load(table.grid, table.place)
    refuse(arrays, entries, table.place)
    grid = [_cast(arrays, entry, dtype, table.place(e)) for e, entry in enumerate(entries)]
    made = (e for e, new in enumerate(grid) if new is not table.grid[e])
    return table._replace(grid=grid), sum(prod(entries[e].shape) for e in made) * itemsize(dtype)


def _cast(arrays: Arrays, entry: Any, dtype: Any, place: tuple[Any, int]) -> Any:
    try:
        return arrays.give(arrays.cast(entry, dtype))
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        memory = of_memory(error)
        if memory is not None:
            raise memory from None
        got = f"an entry that does not convert to {dtype} ({error})"
        raise make("DTYPE", *place, got, "one that does") from error
