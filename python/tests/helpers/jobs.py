"""Jobs to flatten, and the plain answer to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every dtype that torch.cat joins; torch has about 20 more than NumPy.
DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
    },
    key=str,
)


def tensor(shape: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits; those of bool are 0 or 1."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    raw = rng.integers(0, 256, count * dtype.itemsize, np.uint8)
    raw = raw & 1 if dtype is torch.bool else raw
    return torch.empty(0, dtype=dtype).set_(
        torch.from_numpy(raw).untyped_storage(), 0, tuple(shape), _contiguous(shape)
    )


def job(
    rows: Sequence[Sequence[int]],
    row_shape: Sequence[int] = (3,),
    dtype: torch.dtype = torch.float32,
    dim: int = 0,
) -> dict[str, list[torch.Tensor]]:
    """Return a key-major job: ``rows[k][b]`` rows for key ``"k"`` and batch b."""
    return {
        str(k): [
            tensor((*row_shape[:dim], n, *row_shape[dim:]), dtype, seed=100 * k + b)
            for b, n in enumerate(line)
        ]
        for k, line in enumerate(rows)
    }


def ragged() -> dict[str, list[torch.Tensor]]:
    """Return 3 keys x 2 batches of (rows, 3) float32, one entry empty."""
    return job([[2, 1], [0, 4], [3, 2]])


def oracle(features: Any, dim: int = 0) -> list[torch.Tensor]:
    """Return what `flatten` must return, by the loop that it replaces."""
    if isinstance(features, dict):
        batches = len(next(iter(features.values()))) if features else 0
        return [torch.cat([features[k][b] for k in features], dim) for b in range(batches)]
    return [torch.cat([batch[k] for k in features[0]], dim) for batch in features]


def batch_major(features: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return a key-major job in the other form."""
    batches = len(next(iter(features.values())))
    return [{key: features[key][b] for key in features} for b in range(batches)]


def numpy_job(features: dict[str, list[torch.Tensor]]) -> dict[str, list[np.ndarray]]:
    """Return the job in NumPy arrays over the same memory."""
    return {key: [t.numpy() for t in entries] for key, entries in features.items()}


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()
