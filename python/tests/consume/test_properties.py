"""Random jobs over one or two storages, some entries held: the answer, and nothing changes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import goflat
from goflat import _native
from helpers.compare import assert_all_bits
from helpers.consuming import live, own

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

DTYPES = (torch.uint8, torch.int16, torch.float32, torch.complex128)
HOLDS = ("no", "tensor", "view", "alias", "storage")


@st.composite
def jobs(draw: Any) -> tuple[dict[int, list[Any]], list[Any], bool]:
    """Return entries, what holds some of them, and whether anything is held at all."""
    keys, batches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    count = keys * batches
    rows = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    order = draw(st.permutations(range(count)))
    gaps = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    storages = draw(st.integers(1, 2))
    cols, dtype = draw(st.integers(1, 5)), draw(st.sampled_from(DTYPES))
    grad = draw(st.booleans())
    entries: dict[int, Any] = {}
    with torch.set_grad_enabled(grad):
        for s in range(storages):
            mine = [e for e in order if e % storages == s]
            total = sum(rows[e] + gaps[e] for e in mine)
            whole, start = own((total, cols), dtype, 7 + s), 0
            for e in mine:
                start += gaps[e]
                entries[e] = whole[start : start + rows[e]]
                start += rows[e]
            del whole
    chosen = draw(st.sets(st.integers(0, count - 1), max_size=2))
    kept = [hold(entries[e], draw(st.sampled_from(HOLDS))) for e in chosen]
    kept = [thing for thing in kept if thing is not None]
    features = {k: [entries.pop(k * batches + b) for b in range(batches)] for k in range(keys)}
    return features, kept, bool(kept)


def hold(entry: Any, how: str) -> Any:
    if how == "view":
        return entry[:1]
    if how == "alias":
        return entry.detach()
    if how == "storage":
        return entry.untyped_storage()
    return entry if how == "tensor" else None


def seen(thing: Any) -> list[int]:
    """Return what a holder sees, as bytes."""
    if isinstance(thing, torch.UntypedStorage):
        return [] if not thing.nbytes() else thing.tolist()
    return goflat.cat([thing]).reshape(-1).view(torch.uint8).tolist() if thing.numel() else []


@given(job=jobs(), limit=st.booleans())
@settings(max_examples=30)
def test_random_jobs(job: Any, limit: bool) -> None:
    features, kept, is_held = job
    job = None  # what hypothesis has of it is the tuple, whose dict is emptied
    want = list(goflat.flatten(features))
    before = [seen(thing) for thing in kept]
    made = goflat.plan(features, inplace=True)
    storages = {t.untyped_storage().data_ptr() for x in features.values() for t in x if t.numel()}
    bounds = goflat.plan(made.layout, inplace=True).growth
    assert bounds[0] <= made.growth <= bounds[1]  # type: ignore[index, operator]
    if len(storages) == 1 and not is_held:
        assert made.growth == 0, str(made)
    if limit and made.growth:
        with pytest.raises(goflat.MemoryLimitError):
            goflat.flatten_(features, max_growth=made.growth - 1)  # type: ignore[operator]
    flat = goflat.flatten_(features, max_growth=made.growth)  # type: ignore[arg-type]
    assert flat.plan.growth == made.growth
    assert_all_bits([goflat.cat([out]) for out in flat], want)
    for out in flat:
        out.zero_()
    assert [seen(thing) for thing in kept] == before
    assert features == {}
    del flat, out
    if live() != (0, 0, 0):
        gc.collect()
    assert live() == (0, 0, 0)
