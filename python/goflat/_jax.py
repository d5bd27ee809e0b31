"""JAX arrays, which never change: read in place on the CPU, joined by JAX everywhere else.

On the CPU entries are read as the NumPy views that JAX gives of its memory, and joined into new
memory that JAX then takes over without a copy. `jax.numpy.concatenate` would compile a program for
every combination of shapes, which takes 20 ms each; for ragged jobs that is every call. Under a
tracer, on a GPU, for arrays spread over devices and for keys of random numbers it is what joins:
outside of tracers all batches in one program.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._features import Features
from ._layout import offsets
from ._numpy import NumPy

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ._kinds import Place, Refusal
    from ._layout import Layout

_TRACED = "traced"  # device of entries inside jax.jit, jax.grad and the like: JAX places those
_ALIGNMENT = 64  # bytes; what lies otherwise JAX would copy


class Entry(NamedTuple):
    """An array of JAX, and what a layout says of it.

    Attributes
    ----------
    array : jax.Array
        The entry itself, perhaps a tracer.
    shape, dtype : tuple of int, dtype
        Of the array.
    device : str
        As ``"cpu:0"``; several devices as ``"cpu:0,1"``. JAX's own devices do not pickle.
    readable : bool
        Whether it lies in memory of this process, as NumPy would lay it out.
    """

    array: Any
    shape: tuple[int, ...]
    dtype: Any
    device: str
    readable: bool


class Jax(NumPy):
    """Joins JAX arrays into new ones."""

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return `entries` with what a layout says of them; one tracer makes a job traced."""
        if any(isinstance(entry, jax.core.Tracer) for entry in entries):
            return [Entry(e, tuple(e.shape), e.dtype, _TRACED, False) for e in entries]
        places = {sharding: _place(sharding) for sharding in {e.sharding for e in entries}}
        return [_placed(entry, *places[entry.sharding]) for entry in entries]

    def refusal(self, entry: Entry) -> Refusal | None:
        """Refuse arrays whose memory was given away."""
        if not isinstance(entry.array, jax.core.Tracer) and entry.array.is_deleted():
            return "DEVICE", "a deleted JAX array (donated, perhaps)", "an array with memory"
        return None

    def cast(self, entry: Entry, dtype: Any) -> Any:
        """Return the array as `dtype`; whatever JAX calls a dtype will do."""
        return entry.array if entry.dtype == dtype else entry.array.astype(dtype)

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Any:
        """Join into a new array; there never is an `out`."""
        arrays = [entry.array for entry in entries]
        if all(entry.readable for entry in entries):
            into = _aligned(shape, arrays[0].dtype)
            _join([np.asarray(array) for array in arrays], into, dim)
            return _taken_over(into, arrays)
        return jnp.concatenate(_parts(arrays), dim)

    def piece(self, buffer: Any, dim: int, start: int, shape: tuple[int, ...]) -> Any:
        """Return a part of `buffer`: over its memory where JAX takes that, else a copy."""
        if buffer.ndim != len(shape):
            return buffer[:0]
        cut = (slice(None),) * dim + (slice(start, start + shape[dim]),)
        traced = isinstance(buffer, jax.core.Tracer)
        if traced or not _placed(buffer, *_place(buffer.sharding)).readable:
            return buffer[cut]
        return _taken_over(np.asarray(buffer)[cut], [buffer])

    def around(
        self, run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
    ) -> list[Any]:
        """Call `run`, or do the same in one program of JAX if all entries lie together."""
        if not _lie_together(table.grid):
            return run()
        columns = [_parts([entry.array for entry in table.column(b)]) for b in range(table.batches)]
        if len({column[0].ndim for column in columns}) > 1:  # an output of shape (0,)
            return run()
        rows = tuple(offsets(layout, b)[-1] for b in range(layout.batches))
        return list(_program(columns, layout.dim, rows if packed else None))


def _parts(arrays: list[Any]) -> list[Any]:
    """Return those of `arrays` that are not skipped, all of them if they would be all skipped."""
    return [array for array in arrays if tuple(array.shape) != (0,)] or arrays


def _lie_together(entries: list[Entry]) -> bool:
    """Report whether all entries lie on the same devices, where only JAX can join them."""
    first = entries[0]
    if first.readable or first.device == _TRACED:
        return False
    return all(entry.device == first.device for entry in entries)


@partial(jax.jit, static_argnums=(1, 2))
def _program(columns: list[list[Any]], dim: int, packed: tuple[int, ...] | None) -> list[Any]:
    """Join each column or, if `packed` has the rows of their results, all, which are cut then."""
    if packed is None:
        return [jnp.concatenate(column, dim) for column in columns]
    buffer = jnp.concatenate([part for column in columns for part in column], dim)
    cuts = pairwise(accumulate(packed, initial=0))
    return [*(jax.lax.slice_in_dim(buffer, *cut, axis=dim) for cut in cuts), buffer]


def _place(sharding: Any) -> tuple[str, bool]:
    """Name the devices of an array, and report whether it lies on one CPU."""
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    platform = devices[0].platform
    name = f"{platform}:{','.join(str(device.id) for device in devices)}"
    return name, platform == "cpu" and len(devices) == 1


def _placed(array: Any, device: str, on_one_cpu: bool) -> Entry:
    """Describe an array that is no tracer; keys of random numbers have no dtype of NumPy's."""
    dtype = array.dtype
    return Entry(
        array, tuple(array.shape), dtype, device, on_one_cpu and isinstance(dtype, np.dtype)
    )


def _aligned(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return new memory that JAX takes over as it is."""
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT - 1, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _join(views: list[Any], into: Any, dim: int) -> None:
    """Copy `views` into `into`, as plain bytes where only extensions of NumPy know the dtype."""
    from . import _api

    if into.dtype.kind == "V":
        word = f"u{into.itemsize}"
        views, into = [view.view(word) for view in views], into.view(word)
    _api._engine(Features(tuple(range(len(views))), 1, views), [into], dim, False)


def _taken_over(memory: Any, like: list[Any]) -> Any:
    """Return `memory`, to which nobody else refers, as an array of JAX where those of `like` lie.

    It is bound to its device only if one of them is, as with JAX's own operations: arrays that are
    go with no others. `jax.dlpack` would bind all.
    """
    device = next(iter(like[0].sharding.device_set))
    with _wide(memory.dtype):
        if any(array.committed for array in like):
            return jax.device_put(memory, device)
        with jax.default_device(device):
            return jax.device_put(memory)


def _wide(dtype: Any) -> AbstractContextManager[Any]:
    """Keep JAX from halving the width of what was made while it allowed 64 bits."""
    if jax.config.jax_enable_x64 or dtype.name not in _WIDE:
        return nullcontext()
    from jax import experimental

    newest = hasattr(jax, "enable_x64")  # since JAX 0.8
    switch: Any = jax.enable_x64 if newest else experimental.enable_x64
    return switch(True)  # type: ignore[no-any-return]


_WIDE = ("float64", "int64", "uint64", "complex128")
