"""What `flatten` returns: a list of arrays that knows where its rows came from."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import make as make_error
from ._layout import Layout, from_native, offsets, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._plan import Plan

A = TypeVar("A")


class Flat(list[A]):
    """One array per batch, in batch order, and the layout of the entries they were made from.

    A `list` in every respect; made by `flatten`, not by hand. It holds no reference to an entry.

    Attributes
    ----------
    layout : Layout
        Shapes, dtype and devices of the entries, built at the first look.
    plan : Plan
        What the call cost in memory.
    buffer : array or None
        With ``packed=True`` the one array that all outputs are parts of, shape
        ``(rows of all batches, *row_shape)``; else None.

    Examples
    --------
    >>> import torch, goflat
    >>> features = {"p2": [torch.zeros(2, 4)], "p3": [torch.ones(1, 4)]}
    >>> flat = goflat.flatten(features)
    >>> flat[0].shape, flat.layout.rows["p3"]
    (torch.Size([3, 4]), (1,))
    """

    __slots__ = ("_buffer", "_cast", "_columns", "_layout", "_made", "_plan")

    _layout: Layout | tuple[Any, ...]  # a tuple: what the native engine says, see from_native
    _buffer: A | None
    _plan: Plan
    _cast: int  # bytes of temporaries that converting took; unset for none
    _columns: tuple[tuple[A, ...], ...]  # entries by batch, until outputs have been recorded
    _made: str  # "given" where the outputs were the caller's, "arena"; unset for new ones

    @property
    def layout(self) -> Layout:
        """Layout of the entries; holds no reference to them."""
        if isinstance(self._layout, tuple):
            self._layout = from_native(*self._layout)
        return self._layout

    @property
    def buffer(self) -> A | None:
        """The one array that all outputs are parts of, or None if they are not packed."""
        return getattr(self, "_buffer", None)

    @property
    def plan(self) -> Plan:
        """What it cost to make this: see `goflat.plan`. It holds no reference to an entry."""
        plan = getattr(self, "_plan", None)
        if plan is None:
            plan = self._plan = self._make_plan()
        return plan

    def _make_plan(self) -> Plan:
        from ._plan import copy_plan, given_plan

        layout, made = self.layout, getattr(self, "_made", "")
        if made:
            return given_plan(layout, made)
        return copy_plan(layout, cast=getattr(self, "_cast", 0))

    def unflatten(self) -> OrderedDict[Any, list[A]]:
        """Return the rows of each key and batch again, as views.

        Returns
        -------
        OrderedDict[key, list of array]
            Entry of each key and batch with the shape it had; a view of the output.

        Raises
        ------
        ShapeError
            If the list was changed so that it no longer fits its layout.

        Notes
        -----
        Moves no bytes. In-place changes of a view change the output.

        Examples
        --------
        >>> import torch, goflat
        >>> flat = goflat.flatten({"a": [torch.zeros(2, 4)], "b": [torch.ones(1, 4)]})
        >>> flat.unflatten()["b"]
        [tensor([[1., 1., 1., 1.]])]
        """
        return unflatten(self, self.layout)

    def offsets(self, batch: int, device: Any = "cpu", dtype: Any = None) -> Any:
        """Return at which rows of a batch's output the keys begin and end.

        Parameters
        ----------
        batch : int
            Which output; negative numbers count from the end.
        device : torch.device or str, default "cpu"
            Where the result is to lie. NumPy has the CPU only.
        dtype : torch.dtype or numpy.dtype, optional
            Integer dtype of the result, int64 by default.

        Returns
        -------
        Tensor or ndarray
            Shape (K + 1,): key number k has rows ``offsets[k]`` to ``offsets[k + 1]``. A tensor if
            the outputs are tensors, else an ndarray.

        Raises
        ------
        IndexError
            If there is no such batch.

        Notes
        -----
        Computed on the CPU from the layout; a `device` other than the CPU means one small copy.

        Examples
        --------
        >>> import torch, goflat
        >>> goflat.flatten({"a": [torch.zeros(2, 4)], "b": [torch.ones(1, 4)]}).offsets(0)
        tensor([0, 2, 3])
        """
        rows = offsets(self.layout, range(self.layout.batches)[batch])
        if type(self.layout.dtype).__module__ == "torch":
            import torch

            return torch.tensor(rows, dtype=dtype or torch.int64, device=device)
        import numpy as np

        return np.array(rows, dtype=dtype or np.int64)

    def __copy__(self) -> Flat[A]:
        """Copy the list; the arrays are shared, as in any shallow copy."""
        return make(self, self._layout, self.buffer, self.plan)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content. `torch.save` keeps arrays that share a buffer sharing it."""
        return make, (list(self), self.layout, self.buffer, self.plan)


def make(
    arrays: Any, layout: Layout | tuple[Any, ...], buffer: Any = None, plan: Plan | None = None
) -> Flat[Any]:
    """Return a `Flat` of `arrays`; `layout` may be what the native engine says of it."""
    flat: Flat[Any] = Flat(arrays)
    flat._layout = layout
    flat._buffer = buffer
    if plan is not None:
        flat._plan = plan
    return flat


def unflatten(flat: Sequence[A], layout: Layout) -> OrderedDict[Any, list[A]]:
    """Cut `flat` into views along `layout`; see `goflat.unflatten`."""
    if len(flat) != layout.batches:
        want = f"{layout.batches}, one per batch"
        raise make_error("SHAPE", None, None, f"{len(flat)} arrays", want)
    columns = [_cut(array, layout, b) for b, array in enumerate(flat)]
    keys = enumerate(layout.keys)
    return OrderedDict((key, [column[k] for column in columns]) for k, key in keys)


def _cut(array: Any, layout: Layout, batch: int) -> list[Any]:
    bounds = offsets(layout, batch)
    shape, want = tuple(array.shape), shape_of(layout, bounds[-1])
    if shape == (0,) and not bounds[-1]:  # a batch of nothing but (0,) entries
        return [array[:0] for _ in layout.keys]
    if shape != want:
        raise make_error("SHAPE", None, batch, str(shape), str(want))
    return [_rows(array, layout.dim, *span) for span in pairwise(bounds)]


def _rows(array: Any, dim: int, start: int, stop: int) -> Any:
    if hasattr(array, "narrow"):
        return array.narrow(dim, start, stop - start)
    return array[(slice(None),) * dim + (slice(start, stop),)]
