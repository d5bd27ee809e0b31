"""A training step has less in memory at its worst moment with flatten_ than with torch.cat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import goflat
from goflat import _native
from helpers.compare import assert_all_bits
from helpers.training import Head, Sizes, by_torch, inputs, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = [
    pytest.mark.skipif(not _native.available(), reason="no extension"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler"),
]

SIZES = Sizes()
PLANS: list[goflat.Plan] = []


def by_flatten_(features: dict[str, list[Tensor]]) -> list[Tensor]:
    flat = goflat.flatten_(features, max_growth=0)
    PLANS.append(flat.plan)
    return flat


def peak(call: Callable[[], object]) -> int:
    """Return by how many bytes torch's CPU allocator rises above its level, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    level = highest = 0
    for _, nbytes in sorted(memory, key=lambda event: event[0]):
        level += nbytes
        highest = max(highest, level)
    return highest


def test_what_is_measured() -> None:
    def twice() -> None:
        for _ in range(2):
            torch.zeros(100).neg()

    assert peak(twice) == 800


def test_step_peak_is_lower_than_with_torch_cat() -> None:
    model, data = Head(SIZES), inputs(SIZES)
    want, got = (step(model, data, join) for join in (by_torch, by_flatten_))
    assert_all_bits(got, want)
    del got, want
    step(model, data, by_flatten_)
    plain, adopted, copied = (
        peak(lambda join=join: step(model, data, join))  # type: ignore[misc]
        for join in (by_torch, by_flatten_, goflat.flatten)
    )
    # All features lie there twice when they are joined. In place they lie there once, and the worst
    # moment comes in backward, when the gradients of half of them are there too.
    assert plain > SIZES.features * 2
    assert adopted < SIZES.features * 1.6
    assert copied <= plain
    assert {(plan.strategy, plan.growth) for plan in PLANS} == {("inplace", 0)}


def test_forward_peak_is_lower_than_with_torch_cat() -> None:
    """All features lie there once, those of a level twice while it is pooled."""
    model, data = Head(SIZES), inputs(SIZES)
    kept: list[list[Tensor]] = []
    after_torch, after_flatten_ = (
        peak(lambda join=join: kept.append(model(*data, join)))  # type: ignore[misc]
        for join in (by_torch, by_flatten_)
    )
    assert after_torch > SIZES.features * 2
    assert after_flatten_ < SIZES.features * 1.4
