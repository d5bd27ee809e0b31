"""What a job looks like: keys, batches, rows, dtype and devices, but no data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _tracing
from ._errors import make, type_name
from ._features import Features, read
from ._kinds import arrays_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """Shapes, dtype and devices of all entries of a job.

    Layouts are values: they compare and hash by content, pickle, and hold no reference to an array.

    Parameters
    ----------
    keys : tuple
        Keys, in the order in which their rows are joined.
    batches : int
        Number of batches B.
    rows : Mapping[key, tuple of int]
        Extent along `dim` of each entry, one number per batch. Entries of shape (0,), which
        `torch.cat` skips, count as 0 rows.
    row_shape : tuple of int
        Shape of an entry without `dim`, shared by all entries.
    dtype : torch.dtype or numpy.dtype or None
        dtype of all entries; None if there are none.
    devices : tuple
        Device of each batch: a `torch.device`, or ``"cpu"`` for NumPy.
    dim : int
        Dimension along which rows are counted and joined, never negative.

    Examples
    --------
    >>> import torch, goflat
    >>> layout = goflat.Layout.of({"p2": [torch.zeros(3, 4)], "p3": [torch.zeros(1, 4)]})
    >>> layout
    Layout(2 keys x 1 batches, 4 rows of (4,), torch.float32 on cpu, dim=0)
    >>> layout.rows["p2"], layout.row_shape
    ((3,), (4,))
    """

    keys: tuple[Any, ...]
    batches: int
    rows: Mapping[Any, tuple[int, ...]]
    row_shape: tuple[int, ...]
    dtype: Any
    devices: tuple[Any, ...]
    dim: int

    def __post_init__(self) -> None:
        """Freeze the mapping too: a layout is a value."""
        object.__setattr__(self, "rows", MappingProxyType(dict(self.rows)))

    @classmethod
    def of(cls, features: Any, *, dim: int = 0) -> Layout:
        """Describe `features` without touching its data.

        Parameters
        ----------
        features : Mapping[key, Sequence[array]] or Sequence[Mapping[key, array]]
            Entries of shape ``(rows, *row_shape)`` with one dtype and row_shape over the whole job.
        dim : int, default 0
            Dimension along which the entries of a batch are to be joined.

        Returns
        -------
        Layout
            Holds no reference to `features` or to an entry.

        Raises
        ------
        ShapeError
            If lists, key sets or shapes do not match, or `dim` is out of range.
        DTypeError
            If something is not a container or array of the expected kind, or dtypes differ.
        DeviceError
            If the entries of one batch lie on several devices.

        Notes
        -----
        Costs no memory and moves no bytes; entries without data, as on the meta device, will do.

        Examples
        --------
        >>> import torch, goflat
        >>> features = [{"a": torch.zeros(2, 3)}, {"a": torch.zeros(5, 3)}]
        >>> goflat.Layout.of(features).rows["a"]
        (2, 5)
        """
        table = read(features)
        if table.grid and not _tracing.by_dynamo():
            table = table._replace(grid=arrays_of(table).load(table.grid, table.place))
        return describe(table, dim)

    def __hash__(self) -> int:
        """Hash by content; equal layouts hash equal."""
        return hash((self.keys, self.batches, tuple(self.rows.values()), self.row_shape, self.dim))

    def __repr__(self) -> str:
        """Say the size of the job in one line."""
        total = sum(map(sum, self.rows.values()))
        devices = ", ".join(dict.fromkeys(map(str, self.devices))) or "no device"
        return (
            f"Layout({len(self.keys)} keys x {self.batches} batches, {total} rows of "
            f"{self.row_shape}, {self.dtype} on {devices}, dim={self.dim})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content."""
        rows = dict(self.rows)
        args = (self.keys, self.batches, rows, self.row_shape, self.dtype, self.devices, self.dim)
        return Layout, args


def describe(table: Features, dim: Any) -> Layout:
    """Return the layout of `table`, or raise as `torch.cat` would, naming key and batch."""
    if not table.grid:
        nothing: dict[Any, tuple[int, ...]] = {key: () for key in table.keys}
        return Layout(table.keys, table.batches, nothing, (), None, (), 0)
    shapes, model, axis = fit(table, dim)
    shape = shapes[model]
    extents = tuple(shape[axis] if len(shape) == len(shapes[model]) else 0 for shape in shapes)
    rows = _by_key(table.keys, extents, table.batches)
    devices = tuple(device_of(entry) for entry in table.grid[: table.batches])
    dtype = table.grid[model].dtype
    row_shape = shape[:axis] + shape[axis + 1 :]
    return Layout(table.keys, table.batches, rows, row_shape, dtype, devices, axis)


def meant(table: Features, dtype: Any) -> Features:
    """Return `table` with stand-ins that say what its entries will be, for `describe`."""
    return table._replace(grid=[_Meant(entry, dtype) for entry in table.grid])


class _Meant:
    """An entry as it will be when converted."""

    def __init__(self, entry: Any, dtype: Any) -> None:
        self.shape = entry.shape
        self.dtype = dtype
        self.device = getattr(entry, "device", "cpu")


def fit(table: Features, dim: Any) -> tuple[list[tuple[int, ...]], int, int]:
    """Check that the entries, at least one, fit together, as `torch.cat` would.

    Returns
    -------
    (shapes, model, axis)
        Shape of each entry; which entry the others are like, the first that is not skipped; and
        `dim` as a number that is not negative.
    """
    shapes = [tuple(entry.shape) for entry in table.grid]
    model = _model(table, shapes)
    shape = shapes[model]
    axis = _axis(table, dim, shapes, len(shape))
    _check(table, shapes, shape[:axis] + shape[axis + 1 :], axis, table.grid[model].dtype)
    return shapes, model, axis


def from_native(
    keys: tuple[Any, ...] | None,
    counts: bytes,
    dim: int,
    row_shape: tuple[int, ...],
    dtype: Any,
    devices: Any,
) -> Layout:
    """Build the layout of a native result: `counts` has the rows of each entry, key-major.

    `keys` is None for a list of tensors; `devices` is a tuple of one per batch, one for all, or
    None where arrays have no device.
    """
    rows = memoryview(counts).cast("q").tolist()
    keys = tuple(range(len(rows))) if keys is None else keys
    batches = len(rows) // len(keys)
    if not isinstance(devices, tuple):
        devices = ("cpu" if devices is None else devices,) * batches
    by_key = _by_key(keys, tuple(rows), batches)
    return Layout(keys, batches, by_key, row_shape, dtype, devices, dim)


class Counts(NamedTuple):
    """The rows of each entry of a job.

    Attributes
    ----------
    rows : list of int
        Key-major; 0 for entries of shape (0,), which `torch.cat` skips.
    dim : int
        The dimension along which they are counted.
    any_empty : bool
        False if no entry has 0 rows.
    """

    rows: list[int]
    dim: int
    any_empty: bool


def counts(layout: Layout | tuple[Any, ...]) -> Counts:
    """Return the rows of each entry; `layout` may be what the native engine says."""
    if isinstance(layout, tuple):
        zeros = bytes(8) in layout[1]  # 8 bytes of two numbers, too
        return Counts(memoryview(layout[1]).cast("q").tolist(), layout[2], zeros)
    rows = [count for line in layout.rows.values() for count in line]
    return Counts(rows, layout.dim, 0 in rows)


def offsets(layout: Layout, batch: int) -> list[int]:
    """Return the K+1 row numbers at which the keys' parts of one batch start and end."""
    return list(accumulate((rows[batch] for rows in layout.rows.values()), initial=0))


def shape_of(layout: Layout, rows: int | str) -> tuple[Any, ...]:
    """Return the shape of an array of `rows` rows in this layout."""
    return (*layout.row_shape[: layout.dim], rows, *layout.row_shape[layout.dim :])


def device_of(entry: Any) -> Any:
    """Return the device of an entry; every array of NumPy lies on the CPU."""
    return getattr(entry, "device", "cpu")


def dtype_name(dtype: Any) -> str:
    """Name a dtype without its framework: ``float32``."""
    return str(dtype).removeprefix("torch.")


def _by_key(
    keys: tuple[Any, ...], extents: tuple[int, ...], batches: int
) -> dict[Any, tuple[int, ...]]:
    starts = range(0, len(extents), batches)
    return {key: extents[start : start + batches] for key, start in zip(keys, starts, strict=True)}


def _axis(table: Features, dim: Any, shapes: list[tuple[int, ...]], ndim: int) -> int:
    """Normalise `dim` by the number of dimensions; where all is skipped `torch.cat` takes any."""
    try:
        axis = index(None if isinstance(dim, bool) else dim)  # type: ignore[arg-type]
    except TypeError:
        raise make("DTYPE", None, None, f"dim of type {type_name(dim)}", "an int") from None
    if -ndim <= axis < ndim:
        return axis % ndim
    for e, shape in enumerate(shapes):
        if not _is_skipped(shape):
            raise _no_axis(table.place(e), axis, shape)
    return 0


def _no_axis(place: tuple[Any, int], axis: int, shape: tuple[int, ...]) -> Exception:
    if not shape:
        return make("SHAPE", *place, "a 0-dim tensor", "at least 1 dim")
    want = f"-{len(shape)} <= dim < {len(shape)}"
    return make("SHAPE", *place, f"dim {axis} for shape {shape}", want)


def _model(table: Features, shapes: list[tuple[int, ...]]) -> int:
    """Return the first entry that `torch.cat` does not skip, or 0.

    Sizes are looked at only where that may matter: to a tracer each look is a guard, and sizes
    that depend on data have no answer.
    """
    dtype = table.grid[0].dtype
    if all(len(shape) == 1 for shape in shapes) and all(e.dtype == dtype for e in table.grid):
        return 0
    for e, shape in enumerate(shapes):
        if not _is_skipped(shape):
            return e
    return 0


def _is_skipped(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 and shape[0] == 0


def _check(
    table: Features, shapes: list[Any], row_shape: tuple[int, ...], axis: int, dtype: Any
) -> None:
    before, after = row_shape[:axis], row_shape[axis:]
    ndim = len(row_shape) + 1
    devices = [device_of(entry) for entry in table.grid[: table.batches]]
    for e, (entry, shape) in enumerate(zip(table.grid, shapes, strict=True)):
        fits = len(shape) == ndim and shape[:axis] == before and shape[axis + 1 :] == after
        if not fits and not _is_skipped(shape):
            raise make("SHAPE", *table.place(e), str(shape), _free_rows(before, after))
        if entry.dtype != dtype:
            raise make("DTYPE", *table.place(e), dtype_name(entry.dtype), dtype_name(dtype))
        if device_of(entry) != devices[e % table.batches]:
            want = str(devices[e % table.batches])
            raise make("DEVICE", *table.place(e), str(device_of(entry)), want)


def _free_rows(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """Write the shape that entries share, rows left free: ``(*, 256, 7, 7)``."""
    parts = [*map(str, before), "*", *map(str, after)]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
