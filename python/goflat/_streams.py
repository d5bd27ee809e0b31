"""Streams that callers name: which of them results wait for, and which the allocator is told of.

A stream is torch's, CuPy's, or any object with the ``__cuda_stream__`` protocol, as those of
cuda.core: ``(0, handle)``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _native, _tracing
from ._errors import make, type_name
from ._kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from ._layout import Layout

_PROTOCOL = 0  # version of __cuda_stream__
_DEFAULT = (0, 1)  # handles of the legacy default stream, which every device has
_ANYWHERE = (*_DEFAULT, 2)  # and of the default stream of the calling thread


@_tracing.breaks_graph
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
    stream : torch.cuda.Stream or object with ``__cuda_stream__``
        The stream that reads or writes it, on the device of the tensors.

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
    if _tracing.by_dynamo():
        _tracing.outside(record_stream, flat_or_tensor, stream)
        return
    check_stream(stream)
    many = isinstance(flat_or_tensor, (list, tuple))
    for tensor in list(_tensors(flat_or_tensor if many else (flat_or_tensor,))):
        on_torch = torch_stream(stream, tensor.device.index)
        for memory in under(tensor):
            memory.record_stream(on_torch)
        collected = sys.modules.get("goflat._collect")
        if collected is not None:  # free room under an output is nobody's tensor
            collected.use(tensor.data_ptr(), on_torch.cuda_stream)


def check_stream(stream: Any) -> None:
    """Raise for what is no stream."""
    handle(stream)


def handle(stream: Any) -> int:
    """Return the raw handle of a stream; raise for what is none."""
    torchs = _torchs(stream)
    if torchs is not None:
        return int(torchs.cuda_stream)
    if isinstance(stream, _cupys()):
        return int(stream.ptr)
    if not hasattr(type(stream), "__cuda_stream__"):
        want = "a torch.cuda.Stream, or an object with __cuda_stream__"
        raise make("DTYPE", None, None, type_name(stream), want)
    version, address = stream.__cuda_stream__()
    if version != _PROTOCOL:
        got = f"{type_name(stream)} that speaks __cuda_stream__ of version {version}"
        raise make("DTYPE", None, None, got, f"version {_PROTOCOL}")
    return int(address)


def _torchs(stream: Any) -> Any:
    """Return a stream of torch as one of `torch.cuda`; None for what is no stream of CUDA's.

    `torch.accelerator` hands out streams of a class that does not know their handles.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or isinstance(stream, torch.cuda.Stream):
        return None if torch is None else stream
    if not isinstance(stream, torch.Stream) or stream.device.type != "cuda":
        return None
    names = "stream_id", "device_index", "device_type"
    return torch.cuda.Stream(**{name: getattr(stream, name) for name in names})


def _cupys() -> Any:
    """Return the classes of CuPy's streams."""
    cupy: Any = sys.modules.get("cupy")
    return () if cupy is None else (cupy.cuda.Stream, cupy.cuda.ExternalStream)


def home(stream: Any) -> int | None:
    """Return the number of the device that a stream says it is on; None where it says none."""
    device = getattr(stream, "device", stream)
    for name in ("device_id", "index"):
        number = getattr(device, name, None)
        if isinstance(number, int) and number >= 0:
            return number
    return None


def torch_stream(stream: Any, device: int) -> Any:
    """Return `stream` as torch's; `device` is where it lies unless it says otherwise."""
    import torch

    torchs = _torchs(stream)
    if torchs is not None:
        return torchs
    address = handle(stream)
    if address in _DEFAULT:
        return torch.cuda.default_stream(device)
    number = home(stream)
    place = device if number is None else number
    return torch.cuda.ExternalStream(address, device=place)  # type: ignore[no-untyped-call]


def streams_of(wait: Any) -> tuple[Any, ...]:
    """Return the streams of a ``wait=``, each of which is one."""
    try:
        streams = tuple(wait)
    except TypeError:
        got, want = f"wait of type {type_name(wait)}", "a sequence of streams"
        raise make("DTYPE", None, None, got, want) from None
    for stream in streams:
        check_stream(stream)
    return streams


def wait_for(layout: Layout, streams: Sequence[Any]) -> None:
    """Let the current stream of each device wait for `streams`.

    Raises
    ------
    DeviceError
        If the job lies on several devices and a stream does not say which one is its own.
    """
    distinct = {str(device): device for device in layout.devices}  # CuPy's do not hash
    devices = [device for device in distinct.values() if _has_streams(device)]
    for stream in streams if len(devices) > 1 else ():
        if home(stream) is None and handle(stream) not in _ANYWHERE:
            got = f"{type_name(stream)} without a device, for a job on several"
            raise make("DEVICE", None, None, got, "a stream that says its device")
    for device in devices if streams else ():
        _waits(device, streams)


def _has_streams(device: Any) -> bool:
    return getattr(device, "type", "") == "cuda" or _is_cupys(device)


def _is_cupys(device: Any) -> bool:
    cupy: Any = sys.modules.get("cupy")
    return cupy is not None and isinstance(device, cupy.cuda.Device)


def _waits(device: Any, streams: Sequence[Any]) -> None:
    if _is_cupys(device):
        from ._cupy import wait_for as wait

        return wait(device, [(handle(stream), home(stream)) for stream in streams])
    import torch

    current = torch.cuda.current_stream(device)
    for stream in streams:
        current.wait_stream(torch_stream(stream, device.index))
    return None


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
