"""What a call will cost: `plan`, and the `Plan` it returns."""

from __future__ import annotations

import contextlib
import os
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from . import _tracing
from ._cast import fuses, temporary
from ._errors import DeviceError, make, type_name
from ._features import read
from ._kinds import arrays_of, refuse
from ._layout import Layout, describe, meant, offsets
from ._plan_text import details, headline, no_batch, no_key
from ._plan_text import size as size

if TYPE_CHECKING:
    from ._bound import Bound
    from ._flat import Flat

Bytes = int | tuple[int, int]


class Plan:
    """What a call of `flatten` or `flatten_` costs in memory, and why.

    Made by `plan`; ``Flat.plan`` is the one that a result was made by. It holds no reference to an
    entry. All numbers are bytes, and exact in what is asked of the allocator; the allocator may
    round each block up. For a plan made from a `Layout` alone, `growth`, `peak` and
    `reserved_growth` of a consuming call are (best, worst): what matters is where entries lie.

    Attributes
    ----------
    layout : Layout
        Shapes, dtype and devices of the entries.
    strategy : str
        ``"copy"``: new outputs or those of ``out=``, entries untouched. ``"arena"``: slots, which
        producers wrote to. ``"inplace"``: all outputs lie in the entries'
        own memory. ``"mixed"``: some do. ``"stream"``: outputs are made one after the other, and
        the entries of each are given up after it.
    nbytes : int
        Bytes of all entries.
    growth : int or (int, int)
        Most bytes that the allocator rises above its level at the call.
    peak : int or (int, int)
        ``nbytes + growth``.
    tables : int
        Bytes of device memory, goflat's own, that describe the move.
    reserved_growth : int or (int, int)
        Most bytes that torch's allocator may reserve in addition.
    """

    __slots__ = (
        "_call",
        "_given_up",
        "_lines",
        "_one_key",
        "_reasons",
        "growth",
        "in_place",
        "layout",
        "moved_rows",
        "nbytes",
        "peak",
        "reserved_growth",
        "strategy",
        "tables",
    )

    def __init__(
        self,
        layout: Layout,
        strategy: str,
        growth: Bytes,
        *,
        reserved_growth: Bytes,
        tables: int = 0,
        in_place: int = 0,
        moved_rows: int | None = None,
        reasons: dict[int, str] | None = None,
        given_up: frozenset[int] = frozenset(),
        lines: tuple[str, ...] = (),
        one_key: bool = False,
        call: dict[str, Any] | None = None,
    ) -> None:
        self.layout = layout
        self.strategy = strategy
        self.nbytes = nbytes(layout)
        self.growth = growth
        self.peak = _plus(growth, self.nbytes)
        self.tables = tables
        self.reserved_growth = reserved_growth
        self.in_place = in_place
        self.moved_rows = total_rows(layout) if moved_rows is None else moved_rows
        self._reasons = reasons or {}
        self._given_up = given_up
        self._lines = lines
        self._one_key = one_key  # of cat_: texts count tensors
        self._call = call or {}

    def why(self, key: Any, batch: int) -> str:
        """Say what becomes of the memory of an entry, and who holds it where somebody does.

        Parameters
        ----------
        key : Hashable
            A key of the layout.
        batch : int
            Which batch; negative numbers count from the end.

        Returns
        -------
        str
            ``"adopted: ..."``, ``"given up after its output is made: ..."`` or ``"copied: ..."``,
            and the reason. The holder is named as far as Python's garbage collector knows it.

        Raises
        ------
        KeyError, IndexError
            If the layout has no such key or batch.

        Examples
        --------
        >>> import torch, goflat
        >>> kept = torch.zeros(2, 3)
        >>> goflat.plan({"a": [kept]}, inplace=True).why("a", 0)  # doctest: +ELLIPSIS
        "copied: ..."
        """
        e = self._entry(key, index(batch))
        if self.strategy == "copy":
            return "copied: flatten leaves its entries as they are"
        if self.strategy == "arena":
            return "in its slot: written there by its producer"
        if e in self._reasons:
            return f"copied: {self._reasons[e]}"
        if self.strategy == "stream" or e in self._given_up:
            return "given up after its output is made: nobody else refers to it"
        return "adopted: nobody else refers to it"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain Python objects, as for JSON.

        Returns
        -------
        dict[str, Any]
            ``strategy``, ``nbytes``, ``growth``, ``peak``, ``tables``, ``reserved_growth``,
            ``outputs``, ``outputs_in_place``, ``rows``, ``moved_rows``, and ``copied``: a list of
            ``{"key", "batch", "why"}``.
        """
        place = self._place
        copied = [
            {"key": place(e)[0], "batch": place(e)[1], "why": why}
            for e, why in sorted(self._reasons.items())
        ]
        return {
            "strategy": self.strategy,
            "nbytes": self.nbytes,
            "growth": self.growth,
            "peak": self.peak,
            "tables": self.tables,
            "reserved_growth": self.reserved_growth,
            "outputs": self.layout.batches,
            "outputs_in_place": self.in_place,
            "rows": total_rows(self.layout),
            "moved_rows": self.moved_rows,
            "copied": copied,
        }

    def __str__(self) -> str:
        """Say it as a table: a headline, then a line for all that costs something."""
        lines = details(self.layout, self._lines, self._reasons, self._one_key)
        return "\n".join([headline(self), *(f"  {line}" for line in lines)])

    def __repr__(self) -> str:
        """Say it in one line."""
        return f"Plan({headline(self)})"

    @_tracing.breaks_graph
    def __call__(self, features: Any, out: Any = None) -> Flat[Any]:
        """Check that the plan still holds for `features`, and run it.

        Parameters
        ----------
        features : Mapping or Sequence
            Entries of the plan's layout.
        out : Sequence[array] or array, optional
            Where to write, as for `flatten`; not for a consuming plan.

        Returns
        -------
        Flat
            As `flatten` or, for a consuming plan, `flatten_` gives it.

        Raises
        ------
        ShapeError
            If `features` has another layout.
        MemoryLimitError
            If a consuming plan would now grow more than it says.
        """
        if _tracing.by_dynamo():
            return _tracing.outside(Plan.__call__, self, features, out)  # type: ignore[no-any-return]
        from . import _api, _consume

        call = self._call
        if not call.get("inplace"):
            table: Any = read(features)
            self._match(describe_cast(table, call.get("dim", 0), call.get("dtype"))[0])
            options = {name: call[name] for name in ("dim", "dtype", "packed") if name in call}
            return _api.flatten(table, out=out, **options)
        if out is not None:
            raise make(
                "DTYPE", None, None, "out for a consuming plan", "none: outputs lie in place"
            )
        worst = self.growth[1] if isinstance(self.growth, tuple) else self.growth
        limit = call.get("max_growth")
        self._match(describe_cast(features, 0, None)[0])
        return _consume.flatten_(features, max_growth=worst if limit is None else limit)

    @_tracing.breaks_graph
    def bind(self, features: Any, out: Any = None) -> Bound:
        """Run the plan, and return what runs it again on the same memory.

        Parameters
        ----------
        features : Mapping or Sequence
            Entries of the plan's layout. Their memory is kept alive, not the containers.
        out : Sequence[array] or array, optional
            Where to write, as for `flatten`; new outputs otherwise.

        Returns
        -------
        Bound
            Call it to rewrite the outputs from what is in the entries' memory then.

        Raises
        ------
        ShapeError
            If `features` has another layout, or an array of `out` the wrong shape.
        DTypeError
            If the plan is a consuming one, or an entry is not of torch, NumPy or CuPy.

        Examples
        --------
        >>> import torch, goflat
        >>> features = {"a": [torch.zeros(2)], "b": [torch.ones(1)]}
        >>> goflat.plan(features).bind(features).flat
        [tensor([0., 0., 1.])]
        """
        if _tracing.by_dynamo():
            return _tracing.outside(Plan.bind, self, features, out)  # type: ignore[no-any-return]
        from . import _bound

        return _bound.bind(self, features, out)

    def _match(self, layout: Layout) -> None:
        if layout != self.layout:
            raise make("SHAPE", None, None, repr(layout), repr(self.layout))

    def _entry(self, key: Any, batch: int) -> int:
        layout = self.layout
        if key not in layout.keys:
            raise no_key(layout, key)
        if not -layout.batches <= batch < layout.batches:
            raise no_batch(layout, batch)
        return layout.keys.index(key) * layout.batches + batch % layout.batches

    def _place(self, e: int) -> tuple[Any, int]:
        return self.layout.keys[e // self.layout.batches], e % self.layout.batches


@_tracing.breaks_graph
def plan(
    features: Any,
    *,
    inplace: bool = False,
    dim: int = 0,
    dtype: Any = None,
    packed: bool = False,
    max_growth: int | None = None,
) -> Plan:
    """Say what a call would cost in memory, before anything moves.

    Parameters
    ----------
    features : Mapping, Sequence or Layout
        As for `flatten`; or a `Layout` or tensors on the meta device, and then the numbers of a
        consuming call are (best, worst). Nothing is changed, and nothing is kept.
    inplace : bool, default False
        Plan `flatten_`, which consumes its entries; else `flatten`.
    dim, dtype, packed
        As for `flatten`; a consuming call joins along dim 0 and converts nothing.
    max_growth : int, optional
        Bytes that the call may grow.

    Returns
    -------
    Plan
        The numbers; ``str(plan)`` is a table, ``plan(features)`` runs it.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        As `flatten` does.
    OwnershipError
        With `inplace`, for a leaf that requires grad and a tensor given twice.
    MemoryLimitError
        If the plan needs more than `max_growth`; it names the number.

    Examples
    --------
    >>> import torch, goflat
    >>> features = {"p2": [torch.zeros(2, 4)], "p3": [torch.ones(1, 4)]}
    >>> goflat.plan(features).growth
    48
    """
    call = {"inplace": inplace, "dim": dim, "dtype": dtype, "packed": packed}
    if _tracing.by_dynamo():
        made = _tracing.outside(plan, features, max_growth=max_growth, **call)
        return made  # type: ignore[no-any-return]
    call["max_growth"] = max_growth = whole(max_growth)
    if inplace:
        made = _plan_consuming(features, dim, dtype, packed)
    else:
        layout, cast = describe_cast(features, dim, dtype)
        made = copy_plan(layout, dtype, cast)
    made._call = call
    check_limit(made, max_growth)
    return made


def describe_cast(features: Any, dim: int, dtype: Any) -> tuple[Layout, int]:
    """Return the layout, and the bytes that converting entries to `dtype` takes."""
    if isinstance(features, Layout):
        return features, 0
    if dtype is None:
        from . import _native

        try:
            described = _native.layout(features, False, dim)
        except DeviceError:  # maybe for want of memory to read, which a plan can do without
            described = None
        if described is not None:
            return described.layout, 0
    table = read(features)
    if not table.grid:
        return describe(table, dim), 0
    arrays = arrays_of(table)
    grid = arrays.load(table.grid, table.place)
    refuse(arrays, grid, table.place, planning=True)
    if dtype is None:
        return describe(table._replace(grid=grid), dim), 0
    layout = describe(meant(table._replace(grid=grid), dtype), dim)
    if fuses(arrays, grid, dtype):
        return layout, temporary(grid, layout.dim, dtype)
    return layout, sum(
        prod(entry.shape) * itemsize(dtype) for entry in grid if entry.dtype != dtype
    )


def given_plan(layout: Layout, made: str) -> Plan:
    """Return the plan of a result that was there before: ``out=``, or an ``"arena"``."""
    if made == "arena":
        return Plan(layout, made, 0, reserved_growth=0, in_place=layout.batches, moved_rows=0)
    return Plan(layout, "copy", 0, reserved_growth=0)


def copy_plan(
    layout: Layout, dtype: Any = None, cast: int = 0, lines: tuple[str, ...] = ()
) -> Plan:
    """Return the plan of `flatten`: outputs are new, and nothing is given up."""
    item = itemsize(layout.dtype if dtype is None else dtype)
    row = prod(layout.row_shape) * item
    outputs = [offsets(layout, b)[-1] * row for b in range(layout.batches)]
    growth = sum(outputs) + cast
    reserved = reserved_bound(outputs) + cast
    return Plan(layout, "copy", growth, reserved_growth=reserved, lines=lines)


def _plan_consuming(features: Any, dim: int, dtype: Any, packed: bool) -> Plan:
    from . import _consume

    if dim != 0 or dtype is not None or packed:
        raise make("DTYPE", None, None, "dim, dtype or packed", "none of them: flatten_ has none")
    if isinstance(features, Layout):
        return bounds(features)
    if not _lie_somewhere(features):
        return bounds(Layout.of(features))
    return _consume.plan_of(features)


def _lie_somewhere(features: Any) -> bool:
    """Report whether entries have memory to be adopted: those on the meta device have none."""
    grid = read(features).grid
    return not grid or str(getattr(grid[0], "device", "")) != "meta"


def bounds(layout: Layout) -> Plan:
    """Return best and worst of a consuming call, of which only the layout is known."""
    row = row_bytes(layout)
    outputs = [offsets(layout, b)[-1] * row for b in range(layout.batches)]
    worst = sum(outputs)
    reserved = (0, reserved_bound(outputs))
    return Plan(layout, "inplace" if not worst else "mixed", (0, worst), reserved_growth=reserved)


def check_limit(made: Plan, max_growth: int | None) -> None:
    """Raise if a plan needs more than the caller allows; a range counts with its best."""
    if max_growth is None:
        return
    least = made.growth[0] if isinstance(made.growth, tuple) else made.growth
    if least > max_growth:
        want = f"at most {max_growth} bytes (max_growth)\n{made}"
        raise make("LIMIT", None, None, f"a growth of {least} bytes", want)


def whole(max_growth: Any) -> int | None:
    """Return `max_growth` if it is a whole number of bytes, or None."""
    if max_growth is None:
        return None
    if not isinstance(max_growth, bool):
        with contextlib.suppress(TypeError):
            return index(max_growth)
    got = f"max_growth of type {type_name(max_growth)}"
    raise make("DTYPE", None, None, got, "a whole number of bytes")


def may_adopt() -> bool:
    """Report whether consuming calls may write over entries; ``GOFLAT_INPLACE=0`` forbids it."""
    return os.environ.get("GOFLAT_INPLACE", "1") != "0"


# How torch's CUDA allocator reserves memory; flatten.ReservedBound says it at length.
_SMALL, _LARGE = 1 << 20, 10 << 20  # bytes of a block
_SEGMENTS = (2 << 20, 20 << 20)  # bytes


def reserved_bound(blocks: list[int]) -> int:
    """Return the most that torch's allocator may reserve for blocks of so many bytes."""
    rounded = [-(-block // 512) * 512 for block in blocks if block]
    small = [block for block in rounded if block <= _SMALL]
    medium = [block for block in rounded if _SMALL < block < _LARGE]
    shared = zip((small, medium), _SEGMENTS, strict=True)
    total = sum(each * min(len(b), 2 * sum(b) // each + 1) for b, each in shared)
    step = _SEGMENTS[1]
    return total + sum(-(-block // step) * step for block in rounded if block >= _LARGE)


def nbytes(layout: Layout) -> int:
    """Return the bytes of all entries."""
    return total_rows(layout) * row_bytes(layout)


def row_bytes(layout: Layout) -> int:
    """Return the bytes of a row."""
    return prod(layout.row_shape) * itemsize(layout.dtype)


def total_rows(layout: Layout) -> int:
    """Return the rows of all entries."""
    return sum(map(sum, layout.rows.values()))


def itemsize(dtype: Any) -> int:
    """Return the bytes of an element; 0 where there is none to have a dtype."""
    if dtype is None:
        return 0
    size = getattr(dtype, "itemsize", None)
    if not isinstance(size, int):  # what NumPy takes for a dtype: a class, a name
        import numpy as np

        size = np.dtype(dtype).itemsize
    return size


def _plus(count: Bytes, more: int) -> Bytes:
    return (count[0] + more, count[1] + more) if isinstance(count, tuple) else count + more
