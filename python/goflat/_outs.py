"""Checks of ``out=``, all of them before the first byte is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import make, type_name
from ._features import sequence
from ._kinds import kind_of, refuse
from ._layout import device_of, dtype_name
from ._overlap import overlaps, overlaps_itself

if TYPE_CHECKING:
    from ._features import Features
    from ._kinds import Arrays
    from ._layout import Layout


def listed(outs: Any, batches: int) -> list[Any]:
    """Return `outs` as a list of one array per batch."""
    want = f"{batches}, one per batch"
    given = sequence(outs, None, "out as a list with one array per batch")
    if len(given) != batches:
        raise make("SHAPE", None, None, f"{len(given)} outputs", want)
    return given


class OutCheck:
    """Checks the outs of one job.

    Parameters
    ----------
    table, layout, arrays : Features, Layout, Arrays
        The job, checked already.
    example : array
        An entry as the user gave it; outs must be of its kind.
    packed : bool
        Whether the job has one out, the buffer of all batches, rather than one per batch.
    """

    def __init__(
        self, table: Features, layout: Layout, arrays: Arrays, example: Any, packed: bool
    ) -> None:
        self._table = table
        self._layout = layout
        self._arrays = arrays
        self._example = example
        self._packed = packed

    def check(self, outs: list[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
        """Return `outs` as arrays that can be written to, or raise.

        They have the shapes, dtype and devices of the outputs, so that nobody resizes them, and
        share memory neither with an entry nor with one another.
        """
        for b, out in enumerate(outs):
            self._check_kind(b, out)
        loaded = self._arrays.load(outs, self._place)
        refuse(self._arrays, loaded, self._place)
        for b, (out, shape) in enumerate(zip(loaded, shapes, strict=True)):
            self._check_fit(b, out, shape)
            self._check_writable(b, out)
        self._check_autograd()
        self._check_overlap(loaded)
        return loaded

    def _place(self, b: int) -> tuple[None, int | None]:
        return None, None if self._packed else b

    def _error(self, code: str, b: int, got: str, want: str) -> Exception:
        return make(code, *self._place(b), got, want)

    def _check_kind(self, b: int, out: Any) -> None:
        kinds = kind_of(type(out)), kind_of(type(self._example))
        if "jax" in kinds:
            raise self._error("OWNER", b, "an out and arrays of JAX, which never change", "no out=")
        if kinds[0] != kinds[1]:
            want = type_name(self._example)
            raise self._error("DTYPE", b, f"out of type {type_name(out)}", want)

    def _check_fit(self, b: int, out: Any, shape: tuple[int, ...]) -> None:
        dtype, device = self._layout.dtype, self._layout.devices[b]
        if tuple(out.shape) != shape:
            raise self._error("SHAPE", b, f"out of shape {tuple(out.shape)}", str(shape))
        if out.dtype != dtype:
            raise self._error("DTYPE", b, f"out of {dtype_name(out.dtype)}", dtype_name(dtype))
        if device_of(out) != device:
            raise self._error("DEVICE", b, f"out on {device_of(out)}", str(device))

    def _check_writable(self, b: int, out: Any) -> None:
        reason = self._arrays.guarded(out)
        if reason:
            raise self._error("OWNER", b, reason, "an out that can be written to")
        if self._arrays.differentiable(out):
            got = "an out that requires grad or has a tangent"
            raise self._error("OWNER", b, got, "no_grad(), or no grad")

    def _check_autograd(self) -> None:
        for e, entry in enumerate(self._table.grid):
            if self._arrays.differentiable(entry):
                got = "an entry that requires grad or has a tangent, and out="
                raise make("OWNER", *self._table.place(e), got, "no_grad(), or no out=")

    def _check_overlap(self, outs: list[Any]) -> None:
        views = [self._arrays.view(out) for out in outs]
        for b, view in enumerate(views):
            if overlaps_itself(view):
                got = f"strides {view.strides} for shape {view.shape}"
                raise self._error("OVERLAP", b, got, "elements that share no byte")
        for a, b in overlaps(views, views):
            if a < b:
                raise self._error("OVERLAP", b, f"bytes shared with output {a}", "outputs apart")
        for b, e in overlaps(views, [self._arrays.view(entry) for entry in self._table.grid]):
            got = f"bytes shared with output {b}"
            raise make("OVERLAP", *self._table.place(e), got, "outputs apart from entries")
