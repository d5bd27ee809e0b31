"""plan() on a GPU: where entries lie decides, and it is said."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

import goflat
from gpu.support import bits, growth, job, need_devices, oracle, seed_job
from gpu.test_consume import fresh, parts

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.usefixtures("cuda")


def test_a_plan_moves_and_allocates_nothing() -> None:
    features = seed_job()
    want = oracle(features)
    planned, rose = growth(lambda: goflat.plan(features, inplace=True))
    assert rose == 0
    assert planned.growth == 0
    assert all(torch.equal(a, b) for a, b in zip(oracle(features), want, strict=True))


def test_the_headline() -> None:
    fresh()
    features = seed_job()
    headline, *lines = str(goflat.plan(features, inplace=True)).splitlines()
    assert headline.startswith("16 entries, 40.1 MB on cuda:0: inplace, 4 of 4 outputs in place, ")
    assert "growth 0 B" in headline
    assert not lines


def test_spills_name_their_cure() -> None:
    fresh()
    features = job([[700, 900], [800, 600]], (256, 7, 7))
    text = str(goflat.plan(features, inplace=True))
    assert "spill: batch 0, " in text
    assert "entries lie in 4 segments; collect() predicts 0 B" in text


def test_holders_are_named() -> None:
    features = seed_job()
    mine = features["2"][1]
    why = goflat.plan(features, inplace=True).why("2", 1)
    assert "the variable 'mine' of test_holders_are_named()" in why
    assert goflat.plan(features, inplace=True).why("2", 2).endswith("nobody else refers to it")
    del mine


def test_tables_describe_what_moves() -> None:
    still = parts([[40, 30]], (64,))
    assert goflat.plan(still, inplace=True).tables == 0
    moving = goflat.plan(parts([[40, 30], [20, 50]], (64,), order=1), inplace=True)
    assert 0 < moving.tables <= 64 << 10
    assert moving.moved_rows > 0


def test_ranges_of_a_layout_contain_what_happens() -> None:
    for features in (seed_job(), job([[700, 900], [800, 600]], (256, 7, 7)), parts([[4, 3]])):
        planned = goflat.plan(features, inplace=True)
        low, high = goflat.plan(planned.layout, inplace=True).growth  # type: ignore[misc]
        assert low <= planned.growth <= high


def test_two_devices_are_planned_apart() -> None:
    need_devices(2)
    here, there = bits((7, 3)), bits((8, 3), device="cuda:1")
    features: dict[str, list[Tensor]] = {
        "a": [here[:4], there[:5]],
        "b": [here[4:], there[5:]],
    }
    del here, there
    want = oracle(features)
    flat = goflat.plan(features, inplace=True, max_growth=0)(features)
    assert [out.device.index for out in flat] == [0, 1]
    assert all(torch.equal(out.view(torch.int32), w) for out, w in zip(flat, want, strict=True))


def test_a_plan_holds_no_memory() -> None:
    fresh()
    before = torch.cuda.memory_allocated()
    features = seed_job()
    plans = [goflat.plan(features, inplace=True), goflat.plan(features)]
    features.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert str(plans[0].layout.devices[0]) == "cuda:0"
