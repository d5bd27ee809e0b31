"""Tensors that show the extension where torch keeps extents, strides, dtype and address."""

from __future__ import annotations

import torch
from torch import Tensor

_DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
)


def probes() -> tuple[list[tuple[Tensor, int, int, int]], list[Tensor]]:
    """Return what ``LearnImpl`` wants: tensors with what torch says of them, and some elsewhere.

    Each word has to tell them apart, so they differ in number of dimensions, extents, strides,
    offset, dtype and storage. One lies in memory that is not torch's own, since else a storage
    names its memory twice.
    """
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        twice = (*_DTYPES, *reversed(_DTYPES))
        tensors = [torch.zeros(3, dtype=dtype, device="cpu") for dtype in twice]
        tensors += [torch.zeros(n, device="cpu") for n in (2, 5, 7)]
        tensors += [
            torch.zeros(2, 3, 4, 5, 6, device="cpu").sum(tuple(range(n))) for n in range(1, 5)
        ]
        tensors += [torch.zeros(2, 3, 4, 5, 6, device="cpu").transpose(0, 4)]
        tensors += [torch.zeros(20, device="cpu")[n:].view(-1, 2).T for n in (2, 6, 10)]
        tensors += [torch.frombuffer(bytearray(64), dtype=torch.int16)[1:]]
        elsewhere = [torch.empty(3, device="meta") for _ in range(8)]
    return [_probe(tensor) for tensor in tensors], elsewhere


def _probe(tensor: Tensor) -> tuple[Tensor, int, int, int]:
    storage = tensor.untyped_storage()._cdata
    return tensor, storage, int(tensor.storage_offset()), tensor.element_size()
