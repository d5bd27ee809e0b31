"""Arena: outputs made beforehand, written slot by slot."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import goflat
from helpers.arenas import arena_of, fill
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import DTYPES, job, oracle, ragged, tensor

if TYPE_CHECKING:
    from collections.abc import Callable


def start(array: torch.Tensor) -> int:
    """Return the offset of a tensor in its storage, in elements."""
    return int(array.storage_offset())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_outputs_are_those_of_flatten(dim: int) -> None:
    features = job([[2, 1, 0], [0, 4, 0], [3, 0, 2]], row_shape=(2, 5), dim=dim % 3)
    arena = arena_of(features, dim)
    fill(arena, features)
    assert_all_bits(arena.flat, oracle(features, dim))
    assert all(out.is_contiguous() for out in arena.flat)
    for key, entries in features.items():
        assert_all_bits([slot.contiguous() for slot in arena[key]], entries)


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    for dim in 0, 1:
        features = job([[2, 1], [3, 0]], row_shape=(4,), dtype=dtype, dim=dim)
        arena = arena_of(features, dim)
        fill(arena, features)
        assert_all_bits(arena.flat, goflat.flatten(features, dim=dim))


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_any_ragged_job(rows: list[list[int]], dim: int) -> None:
    features = job(rows, row_shape=(2, 3), dim=dim)
    arena = arena_of(features, dim)
    fill(arena, features)
    assert_all_bits(arena.flat, oracle(features, dim))
    assert_all_bits(goflat.flatten(arena, dim=dim), oracle(features, dim))


def test_producers_write_by_out_and_by_index() -> None:
    features = ragged()
    arena = arena_of(features)
    for key, entries in features.items():
        torch.mul(entries[0], 2, out=arena[key][0])
        arena[key][1][...] = entries[1] * 2
    want = {key: [t * 2 for t in entries] for key, entries in features.items()}
    assert_all_bits(arena.flat, oracle(want))


def test_strided_slots_take_out_too() -> None:
    features = job([[2], [4]], row_shape=(3, 5), dim=1)
    arena = arena_of(features, 1)
    for key, (entry,) in features.items():
        assert not arena[key][0].is_contiguous()
        torch.mul(entry, 2, out=arena[key][0])
    assert_bits(arena.flat[0], oracle(features, 1)[0] * 2)


def test_put_takes_entries_in_any_form() -> None:
    arena = arena_of({"a": [torch.empty(3, 4, dtype=torch.complex64)]})
    entry = tensor((4, 3), torch.complex64)
    for given_ in entry.t(), entry.t().conj(), entry[:1, :1].expand(3, 4):
        arena.put("a", 0, given_)
        assert_bits(arena.flat[0], given_.resolve_conj().contiguous())


def test_put_leaves_other_slots_alone() -> None:
    arena = arena_of(ragged())
    for out in arena.flat:
        out.fill_(-1)
    arena.put("2", 0, torch.ones(3, 3))
    assert_bits(arena.flat[0], torch.cat([torch.full((2, 3), -1.0), torch.ones(3, 3)]))
    assert bool((arena.flat[1] == -1).all())


def test_put_counts_batches_from_the_end_too() -> None:
    arena = arena_of(ragged())
    arena.put("2", -1, torch.full((2, 3), 5.0))
    assert bool((arena["2"][1] == 5).all())


# A mapping


def test_is_a_mapping_in_key_order() -> None:
    features = {"z": [torch.empty(1, 3)], 7: [torch.empty(2, 3)], ("a",): [torch.empty(0, 3)]}
    arena = arena_of(features)
    assert list(arena) == list(features)
    assert len(arena) == 3
    assert "z" in arena and "a" not in arena
    assert [key for key, _ in arena.items()] == list(features)
    assert [tuple(slot.shape) for (slot,) in arena.values()] == [(1, 3), (2, 3), (0, 3)]
    assert arena.get("a") is None


def test_slots_are_tuples_of_tensors() -> None:
    arena = arena_of(job([[2, 2, 2]]))
    slots = arena["0"]
    assert isinstance(slots, tuple)
    assert slots[-1] is slots[2]
    assert slots[1:] == (slots[1], slots[2])
    assert arena["0"][1] is slots[1]
    for slot in slots:
        slot.fill_(3)
    assert tuple(torch.stack(slots).shape) == (3, 2, 3)
    assert_bits(torch.cat(slots), torch.full((6, 3), 3.0))
    with pytest.raises(TypeError):
        slots[0] = torch.empty(2, 3)  # type: ignore[index]


def test_goflat_reads_it_as_features() -> None:
    arena = arena_of(ragged())
    fill(arena, ragged())
    assert goflat.Layout.of(arena) == arena.layout == goflat.Layout.of(ragged())
    flat = goflat.flatten(arena)
    assert_all_bits(flat, oracle(ragged()))
    assert flat[0].data_ptr() != arena.flat[0].data_ptr()
    with pytest.raises(goflat.OverlapError):
        goflat.flatten(arena, out=arena.flat)


def test_slots_tile_the_outputs() -> None:
    arena = arena_of(ragged())
    for b, out in enumerate(arena.flat):
        offset = 0
        for slot in (slots[b] for slots in arena.values() if len(slots[b])):
            assert start(slot) == offset
            assert slot.untyped_storage().data_ptr() == out.data_ptr()
            offset += slot.numel()
        assert offset == out.numel()


def test_unflatten_gives_the_slots_again() -> None:
    arena = arena_of(ragged())
    for key, views in arena.flat.unflatten().items():
        for view, slot in zip(views, arena[key], strict=True):
            assert view.shape == slot.shape
            assert view.data_ptr() == slot.data_ptr() or not view.numel()


def test_compares_by_identity() -> None:
    arena, other = arena_of(ragged()), arena_of(ragged())
    assert arena == arena
    assert arena != other
    assert len({arena, other, arena}) == 2


def test_repr() -> None:
    text = "Arena(3 keys x 2 batches, 12 rows of (3,), torch.float32 on cpu, dim=0)"
    assert repr(arena_of(ragged())) == text


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_neither_pickles_nor_copies(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="an Arena cannot be pickled or copied"):
        copied(arena_of(ragged()))
