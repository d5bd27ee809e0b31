"""Workers of a DataLoader beside a process that uses the GPU, and pinned memory on the way."""

from __future__ import annotations

import pytest
import torch

import goflat
from gpu.support import DEVICE
from helpers.loaders import Collate, Detections, check

pytestmark = pytest.mark.usefixtures("cuda", "any_engine")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forked with threads
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, where it is loaded
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("packed", [False, True])
def test_pinned_batches_of_workers(method: str, packed: bool) -> None:
    goflat.flatten({"a": [torch.ones(3, device=DEVICE)]})  # the parent has a context
    loader = torch.utils.data.DataLoader(
        Detections(),
        batch_size=2,
        num_workers=1,
        collate_fn=Collate(packed=packed),
        multiprocessing_context=method,
        persistent_workers=True,
        pin_memory=True,
    )
    for _ in range(2):
        for first, (flat, native, _) in zip((0, 2, 4), loader, strict=True):
            check(flat, first)
            assert native is (method == "spawn")
            assert all(out.is_pinned() for out in flat)
            there = {"a": [out.to(DEVICE, non_blocking=True) for out in flat]}
            moved = goflat.flatten(there)
            assert all(torch.equal(a.cpu(), b) for a, b in zip(moved, flat, strict=True))
