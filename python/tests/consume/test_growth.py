"""max_growth and GrowthWarning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits
from helpers.consuming import (
    ROWS,
    answer,
    apart,
    consume,
    native,
    parts,
)

if TYPE_CHECKING:
    from torch import Tensor

    Features = dict[str, list[Tensor]]


def test_the_exact_bound(engine: str) -> None:
    for make in (apart, lambda rows: parts(rows, gap=1, order=3)):
        features = make([[2, 5], [4, 1], [3, 3]])
        want = answer(features)
        before = {key: [t.clone() for t in entries] for key, entries in features.items()}
        growth = goflat.plan(features, inplace=True).growth
        assert isinstance(growth, int)
        try:
            goflat.flatten_(features, max_growth=growth - 1)
        except goflat.MemoryLimitError as error:
            assert f"a growth of {growth} bytes" in str(error)
            assert f"at most {growth - 1} bytes" in str(error)
            for key in features:
                assert_all_bits([t.clone() for t in features[key]], before[key])
            flat = goflat.flatten_(features, max_growth=growth)  # while the error is alive
        else:
            raise AssertionError("no error")
        assert flat.plan.growth == growth
        assert_all_bits(list(flat), want)


def test_a_warning_that_is_an_error_leaves_everything(engine: str) -> None:
    features = apart(ROWS)
    before = {key: list(entries) for key, entries in features.items()}
    same = [a is b for key in features for a, b in zip(features[key], before[key], strict=True)]
    before.clear()
    growth = goflat.plan(features, inplace=True).growth
    with pytest.raises(goflat.GrowthWarning, match=r"flatten_ grows by .*; say max_growth="):
        goflat.flatten_(features)
    assert all(same)
    try:
        goflat.flatten_(features)
    except goflat.GrowthWarning:
        # the frames of the warning refer to nothing
        assert goflat.plan(features, inplace=True).growth == growth
        assert consume(features).plan.growth == growth


def test_the_warning_points_at_the_caller(engine: str) -> None:
    with pytest.warns(goflat.GrowthWarning) as caught:
        goflat.flatten_(apart(ROWS))
        goflat.cat_([torch.ones(2), torch.ones(3)])
    assert [warning.filename for warning in caught] == [__file__] * 2


@native
def test_no_warning_where_nothing_grows() -> None:
    goflat.flatten_(parts(ROWS))
    goflat.flatten_({})


@pytest.mark.parametrize("limit", ["x", 1.5, True, [], np.float32(3)])
def test_max_growth_is_a_whole_number(limit: Any, engine: str) -> None:
    features = apart(ROWS)
    for call in (
        goflat.flatten_,
        lambda f, max_growth: goflat.plan(f, inplace=True, max_growth=max_growth),
    ):
        with pytest.raises(goflat.DTypeError, match="max_growth"):
            call(features, max_growth=limit)
    assert len(features) == 3


def test_max_growth_of_other_integers_and_below_zero(engine: str) -> None:
    features = apart(ROWS)
    with pytest.raises(goflat.MemoryLimitError):
        goflat.flatten_(features, max_growth=-1)
    consume(features, max_growth=np.int64(1 << 40))
