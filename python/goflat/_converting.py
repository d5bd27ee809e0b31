"""Tensors that torch converts into their places, where the extension does not convert them itself.

It is torch, since what it makes of NaNs and of numbers too large for 8 bits differs
between its releases and devices. On the CPU it also differs with strides and with length: a float32
NaN becomes another bfloat16 NaN in vector code than in the plain loop that strided memory gets. So
there only what is contiguous on both sides, which takes the loop that ``to`` takes, is converted
into its place. Other entries are converted one after the other and then copied.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ._torch import Plain

if TYPE_CHECKING:
    from torch import Tensor

    from ._kinds import Arrays

_FLOATS = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    }
)


def converts(arrays: Arrays, entries: list[Tensor], dtype: Any) -> bool:
    """Report whether all are plain tensors of floats on a CPU or CUDA, and some are not `dtype`."""
    if type(arrays) is not Plain or not isinstance(dtype, torch.dtype) or dtype not in _FLOATS:
        return False
    dtypes = {entry.dtype for entry in entries}
    if not dtypes <= _FLOATS or dtypes == {dtype}:
        return False
    return all(e.layout is torch.strided and e.device.type in ("cpu", "cuda") for e in entries)


def is_direct(entry: Tensor, dim: int) -> bool:
    """Report whether `entry` is converted straight into its rows along `dim` of a new output."""
    return entry.is_cuda or (entry.is_contiguous() and (dim == 0 or prod(entry.shape[:dim]) == 1))


def fill(outputs: list[Tensor], columns: list[list[Tensor]], dim: int) -> None:
    """Convert the entries of each output into their rows of it, all on the CPU and contiguous."""
    rows: list[Tensor] = []
    for into, parts in zip(outputs, columns, strict=True):
        rows += torch.split_with_sizes(into, [part.shape[dim] for part in parts], dim)
    torch._foreach_copy_(rows, [part for parts in columns for part in parts])


class Converting(Plain):
    """Joins plain tensors of several dtypes into outputs of one.

    Attributes
    ----------
    temporary : int
        Bytes of the largest entry that was converted before it was copied, 0 for none. Each of
        them is freed before the next one is made.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.temporary = 0

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Tensor:
        """Convert each of `entries` into its rows."""
        into: Tensor = entries[0].new_empty(shape, dtype=self._dtype) if out is None else out
        parts = [e for e in entries if e.shape != (0,) or len(shape) == 1]
        if into.numel() == 0 or not parts:
            return into
        if (
            into.is_contiguous()
            and not into.is_cuda
            and all(is_direct(part, dim) for part in parts)
        ):
            fill([into], [parts], dim)
            return into
        rows = torch.split_with_sizes(into, [part.shape[dim] for part in parts], dim)
        for place, part in zip(rows, parts, strict=True):
            direct = part.is_cuda or (is_direct(part, dim) and place.is_contiguous())
            place.copy_(part if direct or part.dtype == self._dtype else self._converted(part))
        return into

    def _converted(self, entry: Tensor) -> Tensor:
        self.temporary = max(self.temporary, entry.numel() * self._dtype.itemsize)
        return entry.to(self._dtype)
