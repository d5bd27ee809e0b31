"""What compilers and tracers are shown: `flatten` and `cat` in plain torch operations.

A compiler can then write producers straight into the results. Memory format and aliasing are those
of the operations used: packed outputs are views. Dynamo interprets this code, that of torch 2.6
too, which knows neither `next` with a default nor what named tuples inherit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _torch as _torch  # so that what it tells goflat._tracing is guarded on from now on
from ._errors import make as make_error
from ._features import Features
from ._flat import make
from ._layout import describe, dtype_name, fit, offsets, shape_of
from ._outs import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ._flat import Flat
    from ._layout import Layout


def takes(table: Features) -> bool:
    """Report whether all entries are tensors: arrays of other libraries are nothing to trace."""
    return all(isinstance(entry, torch.Tensor) for entry in table.grid)


def flatten(table: Features, dim: int, out: Any, dtype: Any, packed: bool) -> Flat[Tensor]:
    """Join the tensors of each batch by `torch.cat`; see `goflat.flatten`."""
    table = _converted(table, dtype)
    layout = _on_numbers(describe, table, dim)
    if not table.grid:
        return make([], layout, out if packed else None)
    columns = [table.grid[b :: table.batches] for b in range(table.batches)]
    if packed:
        return _packed(columns, layout, out)
    outs = [None] * table.batches if out is None else listed(out, table.batches)
    results = []
    for b, column in enumerate(columns):
        shape = shape_of(layout, offsets(layout, b)[-1])
        results.append(_cat(column, layout.dim, outs[b], shape, b))
    return make(results, layout)


def cat(table: Features, dim: int, out: Any, dtype: Any) -> Tensor:
    """Join tensors by `torch.cat`; see `goflat.cat`."""
    table = _converted(table, dtype)
    shapes, model, axis = _on_numbers(fit, table, dim)
    if out is None:
        return torch.cat(table.grid, axis)
    shape = shapes[model]
    rows = sum(each[axis] for each in shapes if len(each) == len(shape))
    return _cat(table.grid, axis, out, (*shape[:axis], rows, *shape[axis + 1 :]), 0)


def _packed(columns: list[list[Tensor]], layout: Layout, out: Any) -> Flat[Tensor]:
    entries = [entry for column in columns for entry in column]
    total = sum(offsets(layout, b)[-1] for b in range(layout.batches))
    buffer = _cat(entries, layout.dim, out, shape_of(layout, total), None)
    ndim = len(layout.row_shape) + 1
    if buffer.dim() < ndim:  # (0,), of nothing but entries that are skipped
        return make([buffer.new_empty(0) for _ in columns], layout, buffer)
    # not those of the layout: torch.jit.trace has to see where they come from
    rows = [sum(t.shape[layout.dim] for t in column if t.dim() == ndim) for column in columns]
    return make(torch.split_with_sizes(buffer, rows, layout.dim), layout, buffer)


def _converted(table: Features, dtype: Any) -> Features:
    if dtype is None:
        return table
    return Features(table.keys, table.batches, [entry.to(dtype) for entry in table.grid])


def _cat(
    entries: list[Tensor], dim: int, out: Any, shape: tuple[int, ...], batch: int | None
) -> Tensor:
    """Join into `out`, which `torch.cat` itself would resize and convert into."""
    if out is None:
        return torch.cat(entries, dim)
    if not isinstance(out, torch.Tensor):
        raise make_error("DTYPE", None, batch, f"out of type {type(out).__name__}", "a tensor")
    if tuple(out.shape) != shape:
        raise make_error("SHAPE", None, batch, f"out of shape {tuple(out.shape)}", str(shape))
    dtype = entries[0].dtype
    if out.dtype != dtype:
        got = f"out of {dtype_name(out.dtype)}"
        raise make_error("DTYPE", None, batch, got, dtype_name(dtype))
    return torch.cat(entries, dim, out=out)


def _on_numbers(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` on plain numbers: under torch.jit.trace sizes are tensors."""
    if torch.compiler.is_compiling() or not torch._C._is_tracing():
        return function(*args)
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return function(*args)
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
