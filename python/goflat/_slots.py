"""Making the memory of an arena: one output per batch, cut into slots."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ._errors import make, of_memory, type_name
from ._flat import unflatten
from ._layout import Layout, device_of, offsets, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Empty = Callable[[tuple[int, ...], Any], Any]  # shape, device -> new array of the dtype


class Slots(tuple[Any, ...]):
    """The slots of one key, one per batch: a tuple whose IndexError says which key it is of."""

    key: Any

    @overload
    def __getitem__(self, batch: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, batch: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, batch: SupportsIndex | slice) -> Any:
        """Return the slot of one batch; negative numbers count from the end."""
        try:
            return super().__getitem__(batch)
        except IndexError:
            raise IndexError(f"key {self.key!r}: no batch {batch}, there are {len(self)}") from None


def build(layout: Layout) -> tuple[list[Any], dict[Any, Slots], Layout]:
    """Make the outputs of a job, and cut them into slots.

    Returns
    -------
    outs : list
        One new array per batch.
    slots : dict
        Views of the outputs by key; a slot without rows is an array of its own, which an operation
        may resize without reaching the rows behind it.
    layout : Layout
        `layout` with the dtype and the devices that the outputs say they have.
    """
    _check(layout)
    if not layout.batches:
        return [], {key: _slots(key, ()) for key in layout.keys}, layout
    empty, around = _maker(layout)
    with around:
        outs = _outputs(layout, empty)
        lines = unflatten(outs, layout)
        for key, rows in layout.rows.items():
            for b in (b for b, n in enumerate(rows) if n == 0):
                lines[key][b] = empty(shape_of(layout, 0), device_of(outs[b]))
    devices = tuple(map(device_of, outs))
    as_made = replace(layout, dtype=outs[0].dtype, devices=devices)
    return outs, {key: _slots(key, line) for key, line in lines.items()}, as_made


def _slots(key: Any, arrays: Any) -> Slots:
    slots = Slots(arrays)
    slots.key = key
    return slots


def _outputs(layout: Layout, empty: Empty) -> list[Any]:
    """Return the outputs; where memory ends, those made before are held by nobody."""
    rows = [offsets(layout, b)[-1] for b in range(layout.batches)]
    try:
        return [empty(shape_of(layout, n), d) for n, d in zip(rows, layout.devices, strict=True)]
    except (MemoryError, RuntimeError) as error:
        raise of_memory(error) or error from None


def _check(layout: Any) -> None:
    """Raise for what is no layout, or one made by hand whose parts contradict one another."""
    if not isinstance(layout, Layout):
        raise make("DTYPE", None, None, type_name(layout), "a Layout, as of Layout.of(features)")
    if tuple(layout.rows) != tuple(layout.keys):
        want = f"those of keys {list(layout.keys)}, in that order"
        raise make("SHAPE", None, None, f"rows of keys {list(layout.rows)}", want)
    for key, rows in layout.rows.items():
        if len(rows) != layout.batches:
            raise make("SHAPE", key, None, f"rows of {len(rows)} batches", str(layout.batches))
        if min(rows, default=0) < 0:
            raise make("SHAPE", key, None, f"rows {tuple(rows)}", "no negative number")
    if len(layout.devices) != layout.batches:
        raise make("SHAPE", None, None, f"{len(layout.devices)} devices", f"{layout.batches}")
    if not 0 <= layout.dim <= len(layout.row_shape):
        want = f"0 <= dim <= {len(layout.row_shape)}"
        raise make("SHAPE", None, None, f"dim {layout.dim} for rows of {layout.row_shape}", want)


# ---- frameworks ----


def _maker(layout: Layout) -> tuple[Empty, AbstractContextManager[None]]:
    """Return what makes arrays of the layout's framework and dtype, and in which context."""
    if type(layout.dtype).__module__ == "torch":
        return _torch(layout)
    return _other(layout), nullcontext()


def _torch(layout: Layout) -> tuple[Empty, AbstractContextManager[None]]:
    import torch

    for b, device in enumerate(layout.devices):
        try:
            known = torch.device(device)
        except (RuntimeError, TypeError):
            raise make("DEVICE", None, b, repr(device), "a torch.device") from None
        if known.type == "meta":
            raise make("DEVICE", None, b, "meta", "a device with memory") from None
    return lambda shape, device: torch.empty(shape, dtype=layout.dtype, device=device), _unwatched()


@contextmanager
def _unwatched() -> Iterator[None]:
    """Make tensors that autograd does not follow.

    Views made under no_grad refuse to be written with what requires grad while autograd is on:
    else each step would add to the graph of an output. Normal tensors, not those of inference
    mode, since they are to be written in every mode.
    """
    import torch

    with torch.inference_mode(False), torch.no_grad():
        yield


def _other(layout: Layout) -> Empty:
    """Return what makes CuPy arrays if the first device is one of CuPy's, else NumPy arrays."""
    dtype = _numpy_dtype(layout.dtype)
    np = sys.modules["numpy"]
    cupy: Any = sys.modules.get("cupy")
    on_gpu = [cupy is not None and isinstance(d, cupy.cuda.Device) for d in layout.devices]
    for b, device in enumerate(layout.devices):
        if on_gpu[b] != on_gpu[0] or not (on_gpu[b] or device == "cpu"):
            want = "a device of CuPy, as batch 0" if on_gpu[0] else "cpu, where NumPy's arrays lie"
            raise make("DEVICE", None, b, str(device), want)

    def empty(shape: tuple[int, ...], device: Any) -> Any:
        if not on_gpu[0]:
            return np.empty(shape, dtype)
        with device:
            return cupy.empty(shape, dtype)

    return empty


def _numpy_dtype(dtype: Any) -> Any:
    """Return `dtype` as NumPy's; None, which NumPy takes for float64, is none."""
    try:
        import numpy as np

        if dtype is not None:
            return np.dtype(dtype)
    except (ImportError, TypeError):
        pass
    raise make("DTYPE", None, None, repr(dtype), "a dtype of torch or NumPy")
