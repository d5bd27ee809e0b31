"""NumPy arrays, and arrays of other libraries that NumPy can read through DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import make, type_name
from ._overlap import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._features import Features
    from ._kinds import Place, Refusal
    from ._layout import Layout

_DLPACK_CPU = 1  # kDLCPU of dlpack.h


class NumPy:
    """Joins NumPy arrays with `numpy.concatenate`."""

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return `entries`: they are arrays already."""
        return entries

    def refusal(self, entry: Any) -> Refusal | None:
        """Refuse masked arrays: concatenation would drop the mask."""
        if isinstance(entry, np.ma.MaskedArray):
            return "DTYPE", "a numpy.ma.MaskedArray, whose mask would be lost", "a plain array"
        return None

    def guarded(self, out: Any) -> str | None:
        """Refuse arrays that NumPy would not write to."""
        return None if out.flags.writeable else "a read-only out"

    def differentiable(self, array: Any) -> bool:
        """Report False: NumPy has no autograd."""
        return False

    def view(self, array: Any) -> View:
        """Return the memory that `array` covers."""
        address = array.__array_interface__["data"][0]
        return View(address, array.shape, array.strides, array.itemsize)

    def cast(self, entry: Any, dtype: Any) -> Any:
        """Return `entry` as `dtype`; whatever NumPy calls a dtype will do."""
        return entry.astype(dtype, copy=False)

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Any:
        """Join with `numpy.concatenate`.

        The dtype is given, since `numpy.concatenate` would turn foreign byte order into native and
        pack structured dtypes; so is the output of plain arrays, which it would lay out in
        Fortran order where the entries are.
        """
        parts = [entry for entry in entries if entry.ndim == len(shape) and entry.shape != (0,)]
        if out is None and {type(entry) for entry in parts} - {np.ndarray}:
            return np.concatenate(parts, dim, dtype=parts[0].dtype, casting="no")
        out = np.empty(shape, entries[0].dtype) if out is None else out
        if parts:
            np.concatenate(parts, dim, out=out)
        return out

    def piece(self, buffer: Any, dim: int, start: int, shape: tuple[int, ...]) -> Any:
        """Return a slice, which NumPy lets the caller write to like any array."""
        if buffer.ndim != len(shape):
            return np.empty(shape, buffer.dtype)
        return buffer[(slice(None),) * dim + (slice(start, start + shape[dim]),)]

    def give(self, array: Any) -> Any:
        """Return `array`: NumPy in, NumPy out."""
        return array

    def around(
        self, run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
    ) -> list[Any]:
        """Call `run`."""
        return run()


class Foreign(NumPy):
    """Arrays of another library, read in place through DLPack and given back the same way."""

    def __init__(self, example: Any) -> None:
        namespace = getattr(example, "__array_namespace__", None)
        self._from_dlpack = getattr(namespace() if namespace else None, "from_dlpack", None)

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return NumPy arrays over the memory of `entries`."""
        return [self._load(entry, place(e)) for e, entry in enumerate(entries)]

    def give(self, array: Any) -> Any:
        """Return `array` as the library's own kind where that can read DLPack."""
        return self._from_dlpack(array) if self._from_dlpack else array

    def _load(self, entry: Any, place: tuple[Any, int | None]) -> Any:
        try:
            device = tuple(map(int, entry.__dlpack_device__()))
        except Exception as error:
            got = f"{type_name(entry)} that does not say where it lies ({error})"
            raise make("DTYPE", *place, got, "an array with __dlpack_device__") from error
        if device[:1] != (_DLPACK_CPU,):
            got = f"{type_name(entry)} on DLPack device {device}"
            raise make("DEVICE", *place, got, "memory of the CPU")
        try:
            return np.from_dlpack(entry)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            got = f"{type_name(entry)} that NumPy cannot read ({error})"
            raise make("DTYPE", *place, got, "a dtype that NumPy has") from error
