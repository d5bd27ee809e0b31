"""Arena.flat, jobs of few rows, and what out= of another shape does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from helpers.arenas import arena_of, fill
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import oracle, ragged, tensor

if TYPE_CHECKING:
    pass


def test_flat_is_the_same_arrays_in_a_new_list() -> None:
    arena = arena_of(ragged())
    flat = arena.flat
    assert type(flat) is goflat.Flat
    assert all(a is b for a, b in zip(flat, arena.flat, strict=True))
    assert flat.layout == arena.layout
    assert flat.buffer is None
    flat.pop()
    assert len(arena.flat) == 2


def test_slots_written_later_show_in_flat() -> None:
    arena = arena_of(ragged())
    flat = arena.flat
    fill(arena, ragged())
    assert_all_bits(flat, oracle(ragged()))


def test_the_next_step_overwrites_the_outputs_of_the_step_before() -> None:
    arena = arena_of(ragged())
    places = [out.data_ptr() for out in arena.flat]
    for step in range(3):
        features = {key: [t.clone().fill_(step) for t in ts] for key, ts in ragged().items()}
        fill(arena, features)
        held = arena.flat
        assert_all_bits(held, oracle(features))
        assert [out.data_ptr() for out in held] == places


# Few rows, or none


@pytest.mark.parametrize("features", [{}, {"a": []}, []], ids=repr)
def test_no_batches(features: Any) -> None:
    arena = arena_of(features)
    assert arena.flat == []
    assert list(arena) == list(features)
    assert all(slots == () for slots in arena.values())


def test_no_rows() -> None:
    features = {"a": [torch.empty(0, 4), torch.empty(0, 4)]}
    arena = arena_of(features)
    fill(arena, features)
    assert_all_bits(arena.flat, oracle(features))


def test_legacy_entries_may_be_put_where_no_rows_are() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))], "b": [tensor((1, 3)), torch.empty(0)]}
    arena = arena_of(features)
    fill(arena, features)
    assert_all_bits(arena.flat, oracle(features))
    with pytest.raises(goflat.ShapeError, match=r"key 'b', batch 0: got \(0,\), want \(1, 3\)"):
        arena.put("b", 0, torch.empty(0))


def test_a_batch_of_nothing_but_legacy_entries_has_no_rows() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))]}
    arena = arena_of(features)
    fill(arena, features)
    assert_all_bits(arena.flat, [torch.empty(0, 3), features["a"][1]])
    nothing = {"a": [torch.empty(0)], "b": [torch.empty(0)]}
    assert_all_bits(arena_of(nothing).flat, oracle(nothing))


def test_rows_of_no_elements() -> None:
    features = {"a": [torch.empty(2, 0)], "b": [torch.empty(1, 0)]}
    arena = arena_of(features)
    fill(arena, features)
    assert_all_bits(arena.flat, oracle(features))
    with pytest.raises(goflat.ShapeError):
        arena.put("a", 0, torch.empty(0))


# What out= of another shape does


def test_a_slot_without_rows_that_is_resized_reaches_no_other() -> None:
    arena = arena_of(ragged())
    fill(arena, ragged())
    torch.mul(torch.ones(2, 3), 7, out=arena["1"][0])  # torch resizes it, and says nothing
    for key in "0", "2":
        assert_bits(arena[key][0].clone(), ragged()[key][0])
    with pytest.raises(
        goflat.ShapeError,
        match=r"key '1', batch 0: got a slot that was resized to \(2, 3\), want \(0, 3\)",
    ):
        _ = arena.flat


def test_a_slot_that_is_resized_is_noticed() -> None:
    arena = arena_of(ragged())
    with pytest.warns(UserWarning, match="resized"):
        torch.mul(torch.ones(1, 3), 7, out=arena["0"][0])
    with pytest.raises(goflat.ShapeError) as caught:
        _ = arena.flat
    assert (caught.value.key, caught.value.batch) == ("0", 0)
