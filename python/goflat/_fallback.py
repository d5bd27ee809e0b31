"""`flatten` in pure Python: the same results and errors as the native engine, by `torch.cat`.

Used where the native module cannot load, in forked children, and for arrays it does not know.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from . import _tracing
from ._errors import make, of_memory, type_name
from ._features import Features, read
from ._flat import make as make_flat
from ._kinds import arrays_of, refuse
from ._layout import describe, offsets, shape_of
from ._outs import OutCheck, listed

if TYPE_CHECKING:
    from ._flat import Flat
    from ._kinds import Arrays
    from ._layout import Layout


def flatten(features: Any, outs: Any, dim: Any, packed: bool) -> Flat[Any]:
    """Join the entries of each batch; the engine behind `goflat.flatten`.

    Parameters
    ----------
    features : Mapping, Sequence or Features
        As the user gave it, or read already.
    outs : Sequence of array, array or None
        One array per batch; if `packed`, the one buffer.
    dim : int
        Dimension to join along.
    packed : bool
        Whether the outputs are to lie in one buffer.
    """
    table = read(features)
    if _tracing.watches(table):
        return _tracing.flatten(table, dim, outs, None, packed)
    if not table.grid:
        return _nothing(table, outs, packed)
    arrays = arrays_of(table)
    example = table.grid[0]
    table = table._replace(grid=arrays.load(table.grid, table.place))
    refuse(arrays, table.grid, table.place)
    return join(table, describe(table, dim), arrays, example, outs, packed)


def join(
    table: Features, layout: Layout, arrays: Arrays, example: Any, outs: Any, packed: bool
) -> Flat[Any]:
    """Join entries that have been checked and described; `example` is one as the user gave it."""
    job = _Job(table, layout, arrays, example)
    return job.packed(outs) if packed else job.separate(outs)


class _Job:
    """Entries that fit together, and how to join them."""

    def __init__(self, table: Features, layout: Layout, arrays: Arrays, example: Any) -> None:
        self._table = table
        self._layout = layout
        self._arrays = arrays
        self._example = example
        self._shapes = [_shape(table, layout, b) for b in range(layout.batches)]

    def separate(self, outs: Any) -> Flat[Any]:
        """Return one array per batch."""
        given = None if outs is None else listed(outs, self._layout.batches)
        into = self._check(given, self._shapes, packed=False)
        results = self._arrays.around(lambda: self._join(into), self._table, self._layout, False)
        results = [self._arrays.give(array) for array in results]
        return make_flat(results if given is None else given, self._layout)

    def packed(self, out: Any) -> Flat[Any]:
        """Return one array per batch, all of them parts of one buffer."""
        _check_one_device(self._layout)
        rows = [offsets(self._layout, b)[-1] for b in range(self._layout.batches)]
        starts = list(accumulate(rows, initial=0))
        shape = self._packed_shape(starts[-1])
        into = self._check(None if out is None else [out], [shape], packed=True)

        def run() -> list[Any]:
            buffer = self._concat(self._by_batch(), into and into[0], shape)
            pieces = zip(starts, self._shapes, strict=False)
            return [*(self._piece(buffer, *piece) for piece in pieces), buffer]

        *results, buffer = self._arrays.around(run, self._table, self._layout, True)
        results = [self._arrays.give(array) for array in results]
        return make_flat(results, self._layout, self._arrays.give(buffer) if out is None else out)

    def _check(self, outs: list[Any] | None, shapes: list[Any], packed: bool) -> list[Any] | None:
        if outs is None:
            return None
        checker = OutCheck(self._table, self._layout, self._arrays, self._example, packed)
        return checker.check(outs, shapes)

    def _join(self, into: list[Any] | None) -> list[Any]:
        outs = into or [None] * self._layout.batches
        columns = map(self._table.column, range(self._layout.batches))
        jobs = zip(columns, outs, self._shapes, strict=True)
        return [self._concat(column, out, shape) for column, out, shape in jobs]

    def _by_batch(self) -> list[Any]:
        return [entry for b in range(self._layout.batches) for entry in self._table.column(b)]

    def _packed_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the buffer; a job of nothing but (0,) entries has (0,) too."""
        real = [shape for shape in self._shapes if shape != (0,)]
        return shape_of(self._layout, rows) if real else (0,)

    def _concat(self, entries: list[Any], out: Any, shape: tuple[int, ...]) -> Any:
        try:
            return self._arrays.concat(entries, self._layout.dim, out, shape)
        except (MemoryError, RuntimeError) as error:
            raise of_memory(error) or error from None

    def _piece(self, buffer: Any, start: int, shape: tuple[int, ...]) -> Any:
        return self._arrays.piece(buffer, self._layout.dim, start, shape)


def _nothing(table: Features, outs: Any, packed: bool) -> Flat[Any]:
    """Return the result for no batches; a buffer that was given must have no elements."""
    if outs is not None and not packed:
        listed(outs, 0)
    elif outs is not None and not hasattr(outs, "shape"):
        raise make("DTYPE", None, None, f"out of type {type_name(outs)}", "an array")
    elif outs is not None and 0 not in outs.shape:
        raise make("SHAPE", None, None, f"out of shape {tuple(outs.shape)}", "no elements")
    return make_flat([], describe(table, 0), outs if packed else None)


def _shape(table: Features, layout: Layout, batch: int) -> tuple[int, ...]:
    """Return the shape of an output; a batch of nothing but (0,) entries has (0,) too."""
    rows = offsets(layout, batch)[-1]
    if rows == 0 and all(entry.shape == (0,) for entry in table.column(batch)):
        return (0,)
    return shape_of(layout, rows)


def _check_one_device(layout: Layout) -> None:
    for b, device in enumerate(layout.devices):
        if device != layout.devices[0]:
            want = f"{layout.devices[0]}, as batch 0: packed outputs share one buffer"
            raise make("DEVICE", None, b, str(device), want)
