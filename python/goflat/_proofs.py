"""How torch converts floats on a GPU: compared once a device and pair, before anything is natively.

Of what a type has no number for, torch's releases and devices make different things: of a NaN in
bfloat16, of 1000 in float8_e4m3fn. So one value is asked for that, and then the conversion is
compared over values that tell ways of rounding apart. What gives other bits is left to torch.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from . import _native

FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)  # in the order of Float in flatten/float.go

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_likes: dict[torch.dtype, Tensor] = {}


def like(dtype: torch.dtype) -> Tensor | None:
    """Return a tensor of `dtype`; None where it is no float that is converted natively.

    None also at first use under a mode or transform, which would make something else of it.
    """
    if dtype not in FLOATS or dtype in _likes or _native.watched():
        return _likes.get(dtype)
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        return _likes.setdefault(dtype, torch.empty(0, dtype=dtype, device="cpu"))


def prove(device: torch.device, sources: set[torch.dtype], like: Tensor) -> bool:
    """Compare conversions of `sources` to the dtype of `like` on a CUDA device; False if it cannot.

    Takes milliseconds, loads kernels and waits for the device, so not while a graph is captured.
    """
    core = _native._core
    if core is None or device.type != "cuda":
        return False
    with torch.cuda.device(device), torch.inference_mode(False), torch.no_grad():
        if torch.cuda.is_current_stream_capturing():
            return False
        rules = _rules(device, like.dtype)
        right = {dtype for dtype in sources if _agrees(samples(dtype).to(device), like, rules)}
    core.bridge_Prove(device.index, FLOATS.index(like.dtype), rules, _bits(sources), _bits(right))
    return True


def _bits(dtypes: set[torch.dtype]) -> int:
    return sum(1 << FLOATS.index(dtype) for dtype in dtypes)


def _rules(device: torch.device, dtype: torch.dtype) -> int:
    """Return what torch makes of the one value that `dtype` has a choice for."""
    value = {torch.bfloat16: float("nan"), torch.float8_e4m3fn: 1000.0}.get(dtype)
    if value is None:
        return 0
    code = torch.full((1,), value, device=device).to(dtype).view(_INTEGERS[dtype.itemsize])
    return int(code.item()) & ((1 << 8 * dtype.itemsize) - 1)


def _agrees(values: Tensor, like: Tensor, rules: int) -> bool:
    result: list[Tensor] = []
    flags = _native._ONE_KEY | _native._NO_GRAD
    if _native._run([values], None, result, 0, flags, like, rules) != _native._DONE:
        return False
    kind = _INTEGERS[like.dtype.itemsize]
    return torch.equal(result[0].view(kind), values.to(like.dtype).view(kind))


@cache
def samples(dtype: torch.dtype) -> Tensor:
    """Return all values of `dtype`, or those where conversions of wider types may differ.

    Infinities, NaNs of several payloads, both zeros, subnormals, and numbers around the ties of
    every narrower type are among them.
    """
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    bits = _singles().to(torch.int32)
    if dtype is torch.float32:
        return bits.view(dtype)
    doubles = bits.view(torch.float32).double().view(torch.int64)
    near = doubles[:, None] + torch.arange(-1, 2)
    powers = torch.arange(1 << 12) * (1 << 52)
    return torch.cat([near.flatten(), powers, powers - 1]).view(dtype)


def _singles() -> Tensor:
    """Return bits of float32: every exponent with mantissas around ties of the narrower types."""
    mantissas = {0}
    for dropped in (13, 16, 20, 21):  # bits that float16, bfloat16, e4m3 and e5m2 have not
        mantissas |= {1 << dropped, *((2 * n + 1) << (dropped - 1) for n in range(3))}
    near = sorted({(m + step) % (1 << 23) for m in mantissas for step in (-1, 0, 1)})
    return (torch.arange(-256, 256)[:, None] * (1 << 23) + torch.tensor(near)).flatten()
