"""Which framework a job's arrays belong to, and what the fall-back asks of a framework."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from ._errors import make, type_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._features import Features
    from ._layout import Layout
    from ._overlap import View

    Refusal = tuple[str, str, str]  # error code, got, want
    Place = Callable[[int], tuple[Any, int | None]]  # index -> key and batch for messages


class Arrays(Protocol):
    """What the fall-back asks of a framework."""

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return `entries` as arrays with shape, dtype and device, sharing their memory."""

    def refusal(self, entry: Any) -> Refusal | None:
        """Say why the data of `entry` cannot be copied as it is, or None."""

    def guarded(self, out: Any) -> str | None:
        """Say why `out` may not be written to, or None."""

    def differentiable(self, array: Any) -> bool:
        """Report whether autograd watches what is done with `array`."""

    def view(self, array: Any) -> View:
        """Return the memory that `array` covers."""

    def cast(self, entry: Any, dtype: Any) -> Any:
        """Return `entry` converted to `dtype`, itself if it has it already."""

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Any:
        """Join `entries` into `out`, or into a new array of `shape` if `out` is None."""

    def piece(self, buffer: Any, dim: int, start: int, shape: tuple[int, ...]) -> Any:
        """Return the part of `buffer` of `shape` that begins at `start` along `dim`."""

    def give(self, array: Any) -> Any:
        """Return a result as the kind of array that the caller gave."""

    def around(
        self, run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
    ) -> list[Any]:
        """Call `run` and return its results, recorded for autograd where that is on."""


def arrays_of(table: Features) -> Arrays:
    """Return the framework of all entries; raise if there are several, or something else."""
    known = {cls: kind_of(cls) for cls in set(map(type, table.grid))}
    kind = known[type(table.grid[0])]
    if kind is None or len(set(known.values())) > 1:
        raise _mixed(table, known, kind)
    if kind == "torch":
        from . import _torch

        return _torch.arrays_of(table.grid)
    if kind == "cupy":
        from . import _cupy

        return _cupy.CuPy()
    if kind == "jax":
        from . import _jax

        return _jax.Jax()
    from . import _numpy

    return _numpy.NumPy() if kind == "numpy" else _numpy.Foreign(table.grid[0])


def kind_of(cls: type) -> Any:
    """Return the name of the framework, another class with ``__dlpack__``, or None.

    Looks frameworks up in `sys.modules`: a class of a framework exists only once it is imported.
    """
    for name, module, base in _BASES:
        if issubclass(cls, getattr(sys.modules.get(module), base, ())):
            return name
    return cls if hasattr(cls, "__dlpack__") else None


_BASES = (
    ("torch", "torch", "Tensor"),
    ("numpy", "numpy", "ndarray"),
    ("cupy", "cupy", "ndarray"),
    ("jax", "jax", "Array"),
    ("jax", "jax.core", "Tracer"),
)


def refuse(arrays: Arrays, entries: list[Any], place: Place, *, planning: bool = False) -> None:
    """Raise for the first entry whose data cannot be copied as it is.

    When `planning`, for the first that never could be: shapes say what memory it would take.
    """
    for e, entry in enumerate(entries):
        reason = arrays.refusal(entry)
        if reason is not None and not (planning and reason[0] == "DEVICE"):
            code, got, want = reason
            raise make(code, *place(e), got, want)


def _mixed(table: Features, known: dict[type, Any], kind: Any) -> Exception:
    kinds = [known[type(entry)] for entry in table.grid]
    e = next(e for e, other in enumerate(kinds) if other is None or other != kind)
    want = "an array" if kinds[e] is None else type_name(table.grid[0])
    return make("DTYPE", *table.place(e), type_name(table.grid[e]), want)
