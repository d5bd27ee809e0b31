"""``dtype=`` on a GPU: every pair of floats as that GPU's torch converts, without temporaries."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch

import goflat
from gpu.support import DEVICE, DRY, check_bits
from helpers.patterns import FLOATS, patterns

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _no_patterns_stay() -> Iterator[None]:
    """Give the patterns back: other tests want segments of their own."""
    yield
    patterns.cache_clear()


@pytest.mark.parametrize(("source", "target"), list(product(FLOATS, FLOATS)), ids=str)
def test_every_pattern(source: torch.dtype, target: torch.dtype) -> None:
    values = patterns(source, str(DEVICE))
    entries = list(values.split([7, 1, 1000, len(values) - 1008]))
    want = torch.cat([e.to(target) for e in entries])
    check_bits([goflat.cat(entries, dtype=target)], [want])
    table = values[:2304].view(24, 96)
    for view in (table, table[:, ::2], table.t()):
        for dim in (0, 1):
            want = torch.cat([view.to(target), view.to(target)], dim)
            check_bits([goflat.cat([view, view.clone()], dim, dtype=target)], [want])


@pytest.mark.skipif(DRY, reason="counts what the allocator of a GPU gives")
def test_memory_grows_by_the_outputs() -> None:
    features = {key: [torch.ones(1 << 20, 4, device=DEVICE)] * 2 for key in "abc"}
    expected = goflat.plan(features, dtype=torch.bfloat16).growth
    goflat.flatten(features, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    flat = goflat.flatten(features, dtype=torch.bfloat16)
    assert torch.cuda.max_memory_allocated() - before == flat.plan.growth == expected == 48 << 20
