"""Jobs of models, and shapes that are hard to copy fast; all on the GPU.

A job is one or more dicts that are joined by a call each. Rows are drawn with a fixed seed, so
that runs can be compared.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ways import Features


DEVICE = "cuda"  # tests that have no GPU pretend


class Job(NamedTuple):
    """Something to join along `dim`."""

    name: str
    about: str
    make: Callable[[], list[Features]]
    dim: int = 0


def entry(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Any:
    """Return a tensor whose bytes are not all alike."""
    if dtype.is_floating_point:
        return torch.rand(shape, device=DEVICE).to(dtype)
    return torch.randint(0, 100, tuple(shape), device=DEVICE, dtype=dtype)


def drawn(keys: int, batches: int, least: int, most: int, seed: int = 0) -> list[list[int]]:
    """Return rows by key and batch."""
    r = random.Random(seed)
    return [[r.randint(least, most) for _ in range(batches)] for _ in range(keys)]


def of_rows(
    rows: list[list[int]],
    row_shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    dim: int = 0,
) -> Features:
    """Return entries of so many rows along `dim`."""
    before, after = row_shape[:dim], row_shape[dim:]
    return {
        str(k): [entry((*before, n, *after), dtype) for n in of_key]
        for k, of_key in enumerate(rows)
    }


def _grid(keys: int, batches: int, least: int, most: int, *row_shape: int, dim: int = 0) -> Any:
    return lambda: [of_rows(drawn(keys, batches, least, most), row_shape, dim=dim)]


# ---- shapes that are hard ----


def _odd() -> list[Features]:
    """Rows of 1001 bytes, at addresses of any alignment."""
    r = random.Random(1)

    def one(rows: int) -> Any:
        at = r.randrange(16)
        return entry((16 + rows * 1001,), torch.uint8)[at : at + rows * 1001].view(rows, 1001)

    return [{str(k): [one(n) for n in of_key] for k, of_key in enumerate(drawn(64, 32, 1, 40))}]


def _huge_and_tiny() -> list[Features]:
    tiny = {str(k): [entry((16,))] for k in range(4000)}
    return [{"huge": [entry((1 << 28,))], **tiny}]


# ---- models ----


def levels(boxes: int, seed: int) -> list[int]:
    """Return how many of an image's boxes each of four pyramid levels gets.

    Level floor(4 + log2(sqrt(area) / 224)) within 2 to 5: Lin et al., "Feature pyramid networks
    for object detection" (CVPR 2017), equation 1. Sides are drawn around 96 pixels.
    """
    r = random.Random(seed)
    found = [0, 0, 0, 0]
    for _ in range(boxes):
        side = r.lognormvariate(math.log(96), 0.9)
        found[min(max(math.floor(4 + math.log2(side / 224)), 2), 5) - 2] += 1
    return found


def _boxes(images: int, dtype: torch.dtype) -> list[Features]:
    rows = [levels(1000, seed) for seed in range(images)]
    return [of_rows([list(of_level) for of_level in zip(*rows, strict=True)], (256, 7, 7), dtype)]


def _masks() -> list[Features]:
    rows = [levels(128, seed) for seed in range(2)]
    return [of_rows([list(of_level) for of_level in zip(*rows, strict=True)], (256, 14, 14))]


def _anchors() -> list[Features]:
    return [of_rows([[n, n] for n in (201_600, 50_400, 12_600, 3_150, 819)], (4,))]


def _columns(dtype: torch.dtype) -> list[Features]:
    return [of_rows([[128]] * 27, (8192,), dtype, dim=1)]


def sequences(count: int, mean: float, room: int) -> list[list[int]]:
    """Return lengths by slot and batch: sequences packed in order into batches of `room` tokens."""
    r = random.Random(0)
    batches: list[list[int]] = [[]]
    for _ in range(count):
        n = min(room, max(1, round(r.lognormvariate(math.log(mean) - 0.5, 1))))
        if sum(batches[-1]) + n > room:
            batches.append([])
        batches[-1].append(n)
    slots = max(map(len, batches))
    return [[batch[slot] if slot < len(batch) else 0 for batch in batches] for slot in range(slots)]


def _packing() -> list[Features]:
    """Three fields of the same sequences."""
    rows = sequences(8192, 2000, 32_768)
    return [of_rows(rows, (), dtype) for dtype in (torch.int64, torch.int32, torch.uint8)]


def _accumulated() -> list[Features]:
    return [of_rows([[256]] * 5005, (1024,), torch.float16)]


JOBS = (
    Job("seed", "4x4x(50,256,7,7)", _grid(4, 4, 50, 50, 256, 7, 7)),
    Job("uniform", "16x16x(250,256,7,7)", _grid(16, 16, 250, 250, 256, 7, 7)),
    Job("ragged", "16x16x(1..300,256,7,7)", _grid(16, 16, 1, 300, 256, 7, 7)),
    Job("short rows", "64x32x(1..40,260)", _grid(64, 32, 1, 40, 260)),
    Job("odd rows", "64x32x(1..40,1001) bytes, any address", _odd),
    Job("huge and tiny", "1 GB and 4000 x 64 B", _huge_and_tiny),
    Job("many small", "64x32x(8,16)", _grid(64, 32, 8, 8, 16)),
    Job("many keys", "256x4x(16,256)", _grid(256, 4, 16, 16, 256)),
    Job("seed, dim 1", "4x4x(256,50,7,7)", _grid(4, 4, 50, 50, 256, 7, 7, dim=1), 1),
    Job("box features, 2 images", "RoI features of 1000 boxes", lambda: _boxes(2, torch.float32)),
    Job("box features, 8 images", "RoI features of 1000 boxes", lambda: _boxes(8, torch.float32)),
    Job("box features, 8 images, half", "float16", lambda: _boxes(8, torch.float16)),
    Job("mask features", "RoI features of 128 boxes", _masks),
    Job("anchors", "of 800x1344 pixels, 2 images", _anchors),
    Job("columns", "27 x (8192,128) along dim 1", lambda: _columns(torch.float32), 1),
    Job("columns, bfloat16", "27 x (8192,128) along dim 1", lambda: _columns(torch.bfloat16), 1),
    Job("packing", "8192 sequences, 3 fields", _packing),
    Job("accumulated", "5005 x (256,1024) float16", _accumulated),
)
