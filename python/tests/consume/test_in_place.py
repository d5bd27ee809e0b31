"""Outputs that lie in the memory of their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    ROWS,
    apart,
    assert_inside,
    consume,
    native,
    parts,
    span,
)

if TYPE_CHECKING:
    from torch import Tensor

    Features = dict[str, list[Tensor]]


ORDERS = [None, 0, 1, 2, 3]


@native
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gap", [0, 1, 5])
@pytest.mark.parametrize("row_shape", [(1,), (3,), (64,), (5, 7)])
def test_parts_of_one_tensor_become_outputs_in_its_memory(
    order: int | None, gap: int, row_shape: tuple[int, ...]
) -> None:
    features = parts([[3, 1, 4], [1, 5, 9], [2, 6, 5]], row_shape, order=order, gap=gap)
    bounds = span(features)
    flat = consume(features, max_growth=0)
    assert (flat.plan.growth, flat.plan.peak, flat.plan.strategy) == (
        0,
        flat.plan.nbytes,
        "inplace",
    )
    assert flat.plan.in_place == 3
    assert_inside(flat, bounds)


@native
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float64, torch.complex128])
def test_rows_of_odd_bytes(dtype: torch.dtype) -> None:
    for cols in (1, 3, 7, 13):
        for order in ORDERS:
            features = parts([[3, 0, 1], [1, 5, 2]], (cols,), dtype, order=order)
            bounds = span(features)
            assert_inside(consume(features, max_growth=0), bounds)


@native
@pytest.mark.parametrize("grad", [True, False])
def test_split_views(grad: bool) -> None:
    """As detection models make them: one call for all images, then split."""
    with torch.set_grad_enabled(grad):
        pooled = {key: torch.rand(8, 4, 2) for key in "abc"}
        features = {key: list(rows.split([3, 5])) for key, rows in pooled.items()}
        pooled.clear()
        del pooled
        flat = consume(features)
    assert flat.plan.growth == 3 * 8 * 8 * 4, "no pool of 8 rows has room for 9"
    whole = torch.rand(12, 4)
    chunks = list(whole.chunk(3))
    del whole
    with torch.set_grad_enabled(grad):
        assert goflat.cat_(chunks, max_growth=0).shape == (12, 4)
    views = list(torch.rand(6, 2).unbind())
    assert goflat.cat_(views, max_growth=0).shape == (12,)


@native
def test_parts_in_several_storages() -> None:
    """The output that fits into a storage lies there; the other is allocated."""
    large, small = torch.rand(10, 3), torch.rand(2, 3)
    features = {"a": [*large.split([4, 6])], "b": [small[:1], small[1:]]}
    del large, small
    flat = consume(features)
    assert flat.plan.strategy == "mixed"
    assert flat.plan.in_place == 1
    assert 0 < flat.plan.growth <= 7 * 12


@native
def test_results_are_consumed_again_in_place() -> None:
    flat: Any = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    bounds = span({"": list(flat)})
    for _ in range(4):
        lists = list(flat)[::-1]
        del flat[:]
        joined = goflat.cat_(lists, max_growth=0)
        assert_inside([joined], bounds)
        cut = {"a": [joined[:2], joined[2:5]], "b": [joined[5:6], joined[6:]]}
        del joined
        flat = consume(cut, max_growth=0)
        assert_inside(flat, bounds)


@native
def test_a_result_is_a_list_that_can_be_consumed() -> None:
    flat = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    bounds, want = span({"": list(flat)}), torch.cat(list(flat))
    joined = goflat.cat_(flat, max_growth=0)
    assert_bits(joined, want)
    assert_inside([joined], bounds)
    assert len(flat) == 0
    flat = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    holder = {"x": flat}
    del flat
    consume(holder, max_growth=0)


@native
def test_slots_of_an_arena_that_is_gone() -> None:
    layout = goflat.Layout.of(apart(ROWS))
    arena = goflat.Arena(layout)
    for key in layout.keys:
        for b in range(layout.batches):
            arena.put(key, b, torch.rand(layout.rows[key][b], 3))
    features = {key: [arena[key][b] for b in range(layout.batches)] for key in layout.keys}
    held, want = arena.flat, [t.clone() for t in arena.flat]
    flat = consume(features)
    assert_all_bits(list(held), want)
    assert flat.plan.growth > 0, "the arena still refers to its slots"
