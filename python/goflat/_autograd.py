"""What autograd is told of a join: each output is the rows of its batch's entries.

    entry, 4 rows ──┐                              gradients of the entries are rows 0 to 4,
    entry, 2 rows ──┼── Cat ──► output, 7 rows     4 to 6 and 6 to 7 of the output's gradient:
    entry, 1 row  ──┘                              tensors over its memory, 0 bytes

One node for each output, as `torch.cat` makes it: a batch goes backward when its own gradient is
there, frees what its own producers have saved, and waits for no other. A node keeps numbers of
rows; it saves no tensor, and keeps no entry alive.
"""

from __future__ import annotations

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
        flat[b] = join(flat[b], column, rows[b::size], dim, any_empty)
    if flat.buffer is not None:
        entries = [entry for column in columns for entry in column]
        in_order = [count for b in range(size) for count in rows[b::size]]
        flat._buffer = join(flat.buffer, entries, in_order, dim, any_empty)


def join(
    output: Tensor, entries: Sequence[Tensor], rows: list[int], dim: int, any_empty: bool
) -> Tensor:
    """Record `output` as `entries` of so many `rows` joined; see `Counts`."""
    skipped = _skipped(entries, output.dim()) if any_empty else ()
    return _apply(_Job(output, rows, dim, skipped), *entries)  # type: ignore[no-any-return]


def _skipped(entries: Sequence[Tensor], ndim: int) -> tuple[int, ...]:
    return tuple(e for e, entry in enumerate(entries) if entry.dim() != ndim)


class _Job:
    """What a node knows; the output only until it is recorded."""

    __slots__ = ("dim", "output", "rows", "skipped")

    def __init__(
        self, output: Tensor | None, rows: list[int], dim: int, skipped: tuple[int, ...]
    ) -> None:
        self.output, self.rows, self.dim, self.skipped = output, rows, dim, skipped

    def parts(self, grad: Tensor) -> Sequence[Tensor]:
        """Return the rows of `grad` that belong to each entry."""
        if torch.is_grad_enabled() or grad.layout is not torch.strided:
            # for double backward: such views may be changed in place, those of a split not
            ends = zip(_starts(self.rows), self.rows, strict=True)
            parts: Sequence[Tensor] = [grad.narrow(self.dim, *rows) for rows in ends]
        else:
            parts = _cutter()(grad, self.rows, self.dim) or torch.split_with_sizes(
                grad, self.rows, self.dim
            )
        if not self.skipped:
            return parts
        return [grad.new_zeros(0) if e in self.skipped else p for e, p in enumerate(parts)]


def _starts(rows: list[int]) -> list[int]:
    starts, total = [], 0
    for count in rows:
        starts.append(total)
        total += count
    return starts


class Cat(torch.autograd.Function):
    """Rows in, joined rows out."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *entries: Tensor) -> Tensor:
        """Return the output, which has been made already."""
        ctx.set_materialize_grads(False)
        ctx.job = job
        output, job.output = job.output, None
        return output  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand out rows of `grad`."""
        job = ctx.job
        if grad is None:
            return (None,) * (1 + len(job.rows))
        return (None, *job.parts(grad))


# Function.apply looks at every argument for what torch.func has left behind; entries are plain.
_apply = super(torch.autograd.Function, Cat).apply

_cutters: list[Callable[[Tensor, list[int], int], tuple[Tensor, ...] | None]] = []


def _cutter() -> Callable[[Tensor, list[int], int], tuple[Tensor, ...] | None]:
    """Return the extension's way to cut a gradient; without it torch has to."""
    if not _cutters and (
        _native._core is None or not _native._core.bridge_GradientCutter(id(_cutters))
    ):
        return _nobody
    return _cutters[0]


def _nobody(grad: Tensor, rows: list[int], dim: int) -> None:
    """Cut nothing."""
