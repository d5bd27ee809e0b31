"""CuPy arrays: read by their attributes, joined on their device, results from CuPy's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp

from ._numpy import NumPy
from ._overlap import View

if TYPE_CHECKING:
    from ._kinds import Place, Refusal

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # NumPy's kinds in DLPack's numbers


class CuPy(NumPy):
    """Joins CuPy arrays with `cupy.concatenate`."""

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return `entries`: they are arrays already."""
        return entries

    def refusal(self, entry: Any) -> Refusal | None:
        """Refuse nothing: CuPy has no masked arrays."""
        return None

    def guarded(self, out: Any) -> str | None:
        """Refuse nothing: CuPy has no read-only arrays."""
        return None

    def view(self, array: Any) -> View:
        """Return the memory that `array` covers."""
        return View(array.data.ptr, array.shape, array.strides, array.itemsize)

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Any:
        """Join with `cupy.concatenate` on the device of the entries."""
        parts = [entry for entry in entries if entry.ndim == len(shape) and entry.shape != (0,)]
        out = empty(entries[0], shape) if out is None else out
        if parts:
            with out.device:
                cp.concatenate(parts, dim, out=out)
        return out

    def piece(self, buffer: Any, dim: int, start: int, shape: tuple[int, ...]) -> Any:
        """Return a slice, which CuPy lets the caller write to like any array."""
        if buffer.ndim != len(shape):
            return empty(buffer, shape)
        return buffer[(slice(None),) * dim + (slice(start, start + shape[dim]),)]


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """Return a new array of `shape` with dtype and device of `like`."""
    with like.device:
        return cp.empty(shape, like.dtype)


def attributes(array: Any) -> tuple[Any, ...]:
    """Describe `array`: address, shape, strides in bytes, dtype and device in DLPack's numbers."""
    dtype, device = array.dtype, (2, array.device.id)
    code = _CODES.get(dtype.kind, 100)
    return array.data.ptr, array.shape, array.strides, code, dtype.itemsize * 8, 1, *device


def current_stream(device: int) -> int:
    """Return the raw handle of CuPy's current stream on that device."""
    return int(cp.cuda.get_current_stream(device).ptr)


def wait_for(device: Any, streams: list[tuple[int, int | None]]) -> None:
    """Let the current stream of a device wait for others: handle and number of their device."""
    current = cp.cuda.get_current_stream(device.id)
    for handle, number in streams:
        with cp.cuda.Device(device.id if number is None else number):
            event = cp.cuda.Event(disable_timing=True)
            cp.cuda.runtime.eventRecord(event.ptr, handle)
        with device:
            current.wait_event(event)


def introduce() -> dict[str, Any]:
    """Return what the native engine needs to know of CuPy."""
    return {
        "cupy": cp.ndarray,
        "cupy_attributes": attributes,
        "cupy_empty": empty,
        "cupy_stream": current_stream,
    }
