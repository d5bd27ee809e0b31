"""The ``dtype=`` option: entries are converted before anything else looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import make, of_memory
from ._kinds import arrays_of, refuse

if TYPE_CHECKING:
    from ._features import Features
    from ._kinds import Arrays


def cast(table: Features, dtype: Any) -> Features:
    """Return `table` with entries of `dtype`; those that have it already are the same objects."""
    if not table.grid:
        return table
    arrays = arrays_of(table)
    entries = arrays.load(table.grid, table.place)
    refuse(arrays, entries, table.place)
    grid = [_cast(arrays, entry, dtype, table.place(e)) for e, entry in enumerate(entries)]
    return table._replace(grid=grid)


def _cast(arrays: Arrays, entry: Any, dtype: Any, place: tuple[Any, int]) -> Any:
    try:
        return arrays.give(arrays.cast(entry, dtype))
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        memory = of_memory(error)
        if memory is not None:
            raise memory from None
        got = f"an entry that does not convert to {dtype} ({error})"
        raise make("DTYPE", *place, got, "one that does") from error
