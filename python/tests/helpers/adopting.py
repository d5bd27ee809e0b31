"""Memory to lay entries out in, and outputs adopted over them."""

from __future__ import annotations

import ctypes
import gc
import sys
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goflat import _native, _ownership

ROW = 3  # floats
UNCLAIM = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


def live() -> int:
    return int(_native._core.bridge_LiveAdopted())  # type: ignore[union-attr]


class Memory:
    """A buffer that entries are laid out in, one after the other."""

    def __init__(self, rows: int = 64, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.row_bytes = ROW * dtype.itemsize
        self.buffer = bytearray(rows * self.row_bytes)
        self.first = sys.getrefcount(self.buffer)
        raw = torch.frombuffer(self.buffer, dtype=torch.uint8)
        raw[:] = torch.arange(len(self.buffer)) % (2 if dtype is torch.bool else 127)
        self.address = raw.data_ptr()

    def entry(self, start: int, stop: int) -> Tensor:
        """Return a tensor of its own storage over some rows."""
        part = memoryview(self.buffer)[start * self.row_bytes : stop * self.row_bytes]
        storage = torch.frombuffer(part, dtype=torch.uint8).untyped_storage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some dtypes are half supported
            empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, 0, (stop - start, ROW), (ROW, 1))

    def entries(self, *rows: int) -> list[Tensor]:
        starts = np.cumsum([0, *rows])
        return [self.entry(*map(int, ends)) for ends in pairwise(starts)]

    def uses(self) -> int:
        """Return how many storages over the buffer are alive."""
        gc.collect()
        return sys.getrefcount(self.buffer) - self.first

    def want(self, start: int, stop: int) -> bytes:
        return bytes(self.buffer[start * self.row_bytes : stop * self.row_bytes])


def adopt(
    address: int,
    shape: tuple[int, ...],
    under: list[Tensor],
    like: Tensor | None = None,
    claim: tuple[int, int, Any] = (0, 0, None),
) -> Tensor:
    """Return the output; `foreign` of it tells whether it is one over several storages."""
    lo, hi, function = claim
    unclaim = ctypes.cast(function, ctypes.c_void_p).value if function else 0
    made: list[Tensor] = []
    like = under[0] if like is None else like
    core: Any = _native._core
    try:
        core.bridge_Adopt(address, id(shape), id(like), id(under), lo, hi, unclaim, id(made))
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
    return made[0]


def joined(memory: Memory, *rows: int, **options: Any) -> Tensor:
    """Return an output over entries of some rows each, which are gone."""
    entries = memory.entries(*rows)
    return adopt(memory.address, (sum(rows), ROW), entries, **options)


def raw(t: Tensor) -> bytes:
    bytes_ = torch.empty(0, dtype=torch.uint8)
    start, count = t.storage_offset() * t.element_size(), t.numel() * t.element_size()
    return bytes(bytes_.set_(t.untyped_storage(), start, (count,), (1,)).tolist())


# Adopting results again


def surveyed(entries: list[Any]) -> list[tuple[int, int]]:
    return [record[-2:] for record in _ownership.survey(entries)]
