"""What autograd is told of a join: each output is the rows of its batch's entries.

    entry, 4 rows ──┐                              gradients of the entries are rows 0 to 4,
    entry, 2 rows ──┼── Cat ──► output, 7 rows     4 to 6 and 6 to 7 of the output's gradient:
    entry, 1 row  ──┘                              tensors over its memory, 0 bytes

One node for each output, as `torch.cat` makes it: a batch goes backward when its own gradient is
there, frees what its own producers have saved, and waits for no other. A node keeps numbers of
rows; it saves no tensor, and keeps no entry alive.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from . import _native
from ._flat import make
from ._layout import counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ._features import Features
    from ._flat import Flat
    from ._layout import Counts, Layout


def differentiable(
    run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
) -> list[Any]:
    """Call `run` outside of autograd and record its results.

    Parameters
    ----------
    run : callable
        Returns one new tensor per batch and, if `packed`, the buffer behind them.
    table, layout : Features, Layout
        The job.
    packed : bool
        Whether the last result of `run` is the buffer of all batches.

    Returns
    -------
    list of Tensor
        The results of `run`.
    """
    with torch.no_grad():
        results = run()
    flat: Flat[Any] = make(results[: layout.batches], layout, results[-1] if packed else None)
    record(flat, [table.column(b) for b in range(table.batches)], counts(layout))
    return [*flat, flat.buffer] if packed else list(flat)


def record(flat: Flat[Any], columns: Sequence[Sequence[Tensor]], counts: Counts) -> None:
    """Record each output of `flat`, and its buffer, as what it is.

    Parameters
    ----------
    flat : Flat
        Its tensors are unknown to autograd, and no views. Their bytes may be written later.
    columns : sequence of sequence of Tensor
        The entries of each batch, those among them that require no grad too.
    counts : Counts
        The rows of each entry.
    """
    size, (rows, dim, any_empty) = len(columns), counts
    for b, column in enumerate(columns):
        skipped = _skipped(column, flat[b]) if any_empty else ()
        flat[b] = _apply([rows[b::size], dim, skipped, flat[b]], *column)
    if flat.buffer is not None:
        entries = [entry for column in columns for entry in column]
        in_order = [count for b in range(size) for count in rows[b::size]]
        flat._buffer = join(flat.buffer, entries, in_order, dim)


def join(output: Tensor, entries: Sequence[Tensor], rows: list[int], dim: int) -> Tensor:
    """Record `output` as `entries` of so many `rows` joined."""
    return _apply([rows, dim, _skipped(entries, output), output], *entries)  # type: ignore[no-any-return]


def _skipped(entries: Sequence[Tensor], output: Tensor) -> tuple[int, ...]:
    """Return which of `entries` are of shape (0,), unlike `output`: torch.cat skips them."""
    return tuple(e for e, entry in enumerate(entries) if entry.dim() != output.dim())


class Cat(torch.autograd.Function):
    """Rows in, joined rows out."""

    @staticmethod
    def forward(ctx: Any, job: list[Any], *entries: Tensor) -> Tensor:
        """Return the output, which has been made: what `job` has last. The rest is for backward."""
        ctx.set_materialize_grads(False)
        ctx.job = job
        return job.pop()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand out rows of `grad`."""
        rows, dim, skipped = ctx.job
        if grad is None:
            return (None,) * (1 + len(rows))
        parts = _rows_of(grad, rows, dim)
        if skipped:
            parts = [grad.new_zeros(0) if e in skipped else p for e, p in enumerate(parts)]
        return (None, *parts)


def _rows_of(grad: Tensor, rows: list[int], dim: int) -> Sequence[Tensor]:
    """Return the rows of `grad` that belong to each entry."""
    if torch.is_grad_enabled() or grad.layout is not torch.strided:
        # for double backward: such views may be changed in place, those of a split not
        starts = accumulate(rows, initial=0)
        return [grad.narrow(dim, *place) for place in zip(starts, rows, strict=False)]
    parts = _cut(grad, rows, dim)
    return torch.split_with_sizes(grad, rows, dim) if parts is None else parts


# Function.apply looks at every argument for what torch.func has left behind; entries are plain.
_apply = super(torch.autograd.Function, Cat).apply


def _cut(grad: Tensor, rows: list[int], dim: int) -> tuple[Tensor, ...] | None:
    """Cut `grad` as the extension does, which takes the place of this at the first call."""
    global _cut
    found: list[Any] = []
    if _native._core is None or not _native._core.bridge_GradientCutter(id(found)):
        return None
    _cut = found[0]
    return _cut(grad, rows, dim)
