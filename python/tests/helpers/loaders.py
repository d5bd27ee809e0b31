"""What workers of a DataLoader need to be able to import."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import goflat
from goflat import _native

if TYPE_CHECKING:
    from torch import Tensor

KEYS = ("p2", "p3")


class Detections(torch.utils.data.Dataset[Any]):
    """Item i has features by key: i + 1 rows of i, and none or one of -i."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"p2": torch.full((i + 1, 3), float(i)), "p3": torch.full((i % 2, 3), -float(i))}


class Collate:
    """Joins the features of each item, and says what the worker runs on and warned of."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(self, items: list[dict[str, Tensor]]) -> tuple[Any, bool, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flat = goflat.flatten(items, **self._options)
            taken = [dict(item) for item in items]
            del items
            again = goflat.flatten_(taken, max_growth=1 << 30)
        assert all(torch.equal(a, b) for a, b in zip(flat, again, strict=True))
        assert {Path(w.filename).name for w in caught} <= {Path(__file__).name}
        return flat, _native.available(), [str(w.message) for w in caught]


def check(flat: Any, first: int) -> None:
    """Assert that a result is that of two items."""
    items = [Detections()[i] for i in (first, first + 1)]
    want = [torch.cat([item[key] for key in KEYS]) for item in items]
    assert isinstance(flat, goflat.Flat)
    assert all(torch.equal(got, right) for got, right in zip(flat, want, strict=True))
    assert flat.layout.rows["p2"] == (first + 1, first + 2)


def epochs(method: str, workers: int = 1, **options: Any) -> tuple[list[bool], list[str]]:
    """Run two epochs with the same workers; return which have the extension, and warnings."""
    loader = torch.utils.data.DataLoader(
        Detections(),
        batch_size=2,
        num_workers=workers,
        collate_fn=Collate(**options),
        multiprocessing_context=method,
        persistent_workers=True,
    )
    native: list[bool] = []
    told: list[str] = []
    for _ in range(2):
        for first, (flat, has, texts) in zip((0, 2, 4), loader, strict=True):
            check(flat, first)
            if flat.buffer is not None:
                assert flat[0].untyped_storage().data_ptr() == flat.buffer.data_ptr()
            native.append(has)
            told += texts
    return native, told
