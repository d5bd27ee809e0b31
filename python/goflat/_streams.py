"""Tells the allocator which streams work on results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import make, type_name
from ._kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def record_stream(flat_or_tensor: Any, stream: Any) -> None:
    """Keep memory from being used again before what `stream` does now is done.

    What ``Tensor.record_stream`` does, and what it does not do for results of `flatten_` and `cat_`
    that lie over several tensors' memory: torch knows nothing of the allocations below them, and
    silently ignores the call. Call it before the last reference to a result is dropped, when
    another stream than the current one has used it.

    Parameters
    ----------
    flat_or_tensor : Flat, Tensor, or list or tuple of Tensor
        Memory of the CPU needs no such care: for it, and for NumPy arrays, nothing is done.
    stream : torch.cuda.Stream
        The stream that reads or writes it.

    Raises
    ------
    DTypeError
        For something that is no tensor, since other libraries' memory pools know no such thing; and
        for something that is no stream, on a CPU too.

    Notes
    -----
    Costs about 0.4 µs per tensor, and as much per tensor that once lay under a result.

    Examples
    --------
    >>> import goflat, torch
    >>> flat = goflat.flatten({"a": [torch.ones(2, 3)]})
    >>> if torch.cuda.is_available():
    ...     goflat.record_stream(flat, torch.cuda.current_stream())
    """
    check_stream(stream)
    many = isinstance(flat_or_tensor, (list, tuple))
    for tensor in list(_tensors(flat_or_tensor if many else (flat_or_tensor,))):
        for memory in under(tensor):
            memory.record_stream(stream)
        collected = sys.modules.get("goflat._collect")
        if collected is not None:  # free room under an output is nobody's tensor
            collected.use(tensor.data_ptr(), stream.cuda_stream)


def check_stream(stream: Any) -> None:
    """Raise for what is no stream of torch."""
    torch = sys.modules.get("torch")  # without it there is none
    if torch is None or not isinstance(stream, torch.cuda.Stream):
        raise make("DTYPE", None, None, type_name(stream), "a torch.cuda.Stream")


def streams_of(wait: Any) -> tuple[Any, ...]:
    """Return the streams of a ``wait=``, each of which is one."""
    try:
        streams = tuple(wait)
    except TypeError:
        got, want = f"wait of type {type_name(wait)}", "a sequence of torch.cuda.Stream"
        raise make("DTYPE", None, None, got, want) from None
    for stream in streams:
        check_stream(stream)
    return streams


def under(tensor: Tensor) -> list[Tensor]:
    """Return the tensors whose memory torch's allocator gave out, and which `tensor` lies in."""
    parts: list[Tensor] = []
    if _native._core is not None and _native._core.bridge_LiveAdopted():
        try:
            _native._core.bridge_Parts(id(tensor), id(parts))
        except RuntimeError as error:
            raise _native._error(str(error), (), 0) from None
    return parts or [tensor]


def _tensors(arrays: Iterable[Any]) -> Iterator[Tensor]:
    """Run through the arrays that an allocator with streams has given out."""
    for array in arrays:
        kind = kind_of(type(array))
        if kind not in ("torch", "numpy"):
            raise make("DTYPE", None, None, type_name(array), "a tensor")
        if kind == "torch" and array.is_cuda:
            yield array
