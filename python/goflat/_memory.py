"""How much device memory is goflat's own."""

from __future__ import annotations

from . import _native, _tracing

_DEVICES = 64  # more than one process sees; a question about a device takes about 1 µs


@_tracing.breaks_graph
def memory() -> dict[str, int]:
    """Say how many bytes of device memory goflat itself holds between calls.

    Returns
    -------
    dict[str, int]
        Bytes by device, ``"cuda:0"`` and so on, in the order of their numbers. Devices on which
        goflat holds nothing are left out; so is the CPU, where it keeps no arrays.

    Notes
    -----
    These bytes come on top of those that `torch.cuda.memory_stats` counts: outputs, slots of an
    `Arena` and consumed entries are the caller's, whose allocator counts them. Nor do the CUDA
    context and the code of kernels count, which stay as long as the process.

    Starts no driver and waits for no device. Other threads may make calls meanwhile: each number
    is right for some moment of the call.

    Examples
    --------
    >>> import torch, goflat
    >>> _ = goflat.flatten({"a": [torch.ones(2, 3)]})
    >>> goflat.memory()
    {}
    """
    if _tracing.by_dynamo():
        return _tracing.outside(memory)  # type: ignore[no-any-return]
    core = _native._core
    if core is None:  # no extension, no CUDA
        return {}
    held = {f"cuda:{device}": core.bridge_Held(device) for device in range(_DEVICES)}
    return {device: count for device, count in held.items() if count}
