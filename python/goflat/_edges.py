"""Edges of consumed entries: outputs are told to autograd while their entries are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _ownership
from ._autograd import join
from ._layout import counts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from ._layout import Layout
    from ._records import Records


class Edges:
    """Records the outputs of a consuming call.

    A node of autograd needs the shapes of the entries and where their gradients go. It keeps none
    of them alive, so what it knows outlives an entry whose memory has become part of an output.

    An output is recorded before its entries are moved where it lies in place, and as soon as it is
    allocated where it does not. By then its entries are there but for those without elements, which
    may be given up at once: a tensor without memory stands in for each of these.

    Parameters
    ----------
    grid : list
        The entries of the job; None for those that were given up.
    layout, records : Layout, Records
        The job, and what the survey said of its entries.
    """

    def __init__(self, grid: list[Any], layout: Layout, records: Records) -> None:
        self._grid, self._size = grid, layout.batches
        self._rows, self._dim, _ = counts(layout)
        self._watched = torch.is_grad_enabled() and _any_grad(records)
        self._stand_ins: dict[int, Tensor] = {}
        if self._watched:
            empty = (e for e in range(len(records)) if not records.nbytes(e))
            self._stand_ins = {e: self._stand_in(e) for e in empty}

    def _stand_in(self, e: int) -> Tensor:
        entry = self._grid[e]
        dim = self._dim if entry.dim() > self._dim else 0
        rows = [entry.shape[dim]]
        return join(entry.detach().new_empty(entry.shape), [entry], rows, dim)

    def record(self, output: Tensor, batch: int) -> Tensor:
        """Return `output`, which autograd knows from now on if it is to know it."""
        if not self._watched:
            return output
        column = range(batch, len(self._grid), self._size)
        entries = [self._stand_ins.get(e, self._grid[e]) for e in column]
        return join(output, entries, self._rows[batch :: self._size], self._dim)


def _any_grad(records: Records) -> bool:
    facts: Iterable[tuple[int, int]] = records.facts()
    return any(flags & _ownership.IS_GRAD for _, flags in facts)
