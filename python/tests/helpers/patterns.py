"""Floats of every kind as bits: all of 8 and 16, and those of 32 and 64 where rounding decides."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
DROPPED = (13, 16, 20, 21)  # bits of a float32 that half, bfloat16, e4m3 and e5m2 have not


@cache
def patterns(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Return values of `dtype`, infinities, NaNs of many payloads and subnormals among them."""
    return _patterns(dtype).to(device)


def _patterns(dtype: torch.dtype) -> Tensor:
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).repeat(10).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    singles = _singles().to(torch.int32).view(torch.float32)
    return singles if dtype is torch.float32 else torch.cat([singles.double(), _doubles()])


def _singles() -> Tensor:
    """Return bits of more than a million float32: each exponent with mantissas around every tie."""
    around = torch.tensor([-2, -1, 0, 1, 2])
    ties = torch.cat([_some(torch.arange(0, 1 << 23, 1 << bits - 1)) for bits in DROPPED])
    mantissas = torch.unique((ties[:, None] + around).flatten() % (1 << 23))
    signs_and_exponents = torch.arange(-256, 256)[:, None] * (1 << 23)
    return (signs_and_exponents + mantissas).flatten()


def _some(values: Tensor) -> Tensor:
    return torch.cat([values[:: max(1, len(values) // 200)], values[:20], values[-20:]])


def _doubles() -> Tensor:
    """Return float64 that a float32 between would round twice, subnormals and NaNs."""
    ties = _singles()[::17].to(torch.int32).view(torch.float32).double()
    bits = ties.view(torch.int64)
    return torch.cat([bits + 1, bits - 1, torch.arange(4096) * (1 << 52) - 1]).view(torch.float64)
