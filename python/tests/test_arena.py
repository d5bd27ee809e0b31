"""Arena: outputs made beforehand, written slot by slot."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import goflat
from helpers import child
from helpers.compare import assert_all_bits, assert_bits
from helpers.foreign import Standard
from helpers.jobs import DTYPES, job, numpy_job, oracle, ragged, tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def arena_of(features: Any, dim: int = 0) -> goflat.Arena:
    return goflat.Arena(goflat.Layout.of(features, dim=dim))


def fill(arena: goflat.Arena, features: Mapping[Any, Any]) -> None:
    for key, entries in features.items():
        for b, entry in enumerate(entries):
            arena.put(key, b, entry)


def start(array: torch.Tensor) -> int:
    """Return the offset of a tensor in its storage, in elements."""
    return int(array.storage_offset())


# Values


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


# flat


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


# Autograd


@pytest.mark.parametrize(
    "write",
    [
        lambda slot, x: slot.copy_(x),
        lambda slot, x: slot.__setitem__(0, x[0]),
        lambda slot, x: slot.mul_(x),
        lambda slot, x: torch.mul(x, 2, out=slot),
    ],
    ids=["copy_", "index", "mul_", "out"],
)
def test_what_requires_grad_cannot_be_written(write: Callable[[Any, Any], Any]) -> None:
    arena = arena_of(ragged())
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError):
        write(arena["0"][0], x)
    with torch.no_grad():
        write(arena["0"][0], x)
    assert not arena.flat[0].requires_grad


def test_put_refuses_what_requires_grad() -> None:
    arena = arena_of(ragged())
    x = torch.ones(2, 3, requires_grad=True)
    for given_ in x, x * 2, torch.nn.Parameter(torch.ones(2, 3)):
        with pytest.raises(goflat.OwnershipError, match="key '0', batch 0: got an array that req"):
            arena.put("0", 0, given_)
        with torch.no_grad():
            arena.put("0", 0, given_)
        assert_bits(arena["0"][0].clone(), given_.detach())


def test_put_refuses_an_output_that_requires_grad() -> None:
    arena = arena_of(ragged())
    arena.flat[0].requires_grad_()
    with pytest.raises(goflat.OwnershipError, match="a slot of an output that requires grad"):
        arena.put("0", 0, torch.ones(2, 3))
    arena.flat[0].requires_grad_(False)
    arena.put("0", 0, torch.ones(2, 3))


def test_outputs_saved_for_backward_are_stale_once_a_slot_is_written() -> None:
    arena = arena_of(ragged())
    fill(arena, ragged())
    weight = torch.ones(3, requires_grad=True)
    loss = (arena.flat[0] * weight).sum()
    fill(arena, ragged())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_mode_makes_no_difference() -> None:
    with torch.inference_mode():
        inside = arena_of(ragged())
        fill(inside, ragged())
    fill(inside, ragged())
    outside = arena_of(ragged())
    with torch.inference_mode():
        fill(outside, ragged())
        torch.mul(torch.ones(2, 3), 2, out=outside["0"][0])
    assert_all_bits(inside.flat, oracle(ragged()))
    assert not outside.flat[0].is_inference()


# NumPy, and others


@pytest.mark.parametrize("dim", [0, 1])
def test_numpy(dim: int) -> None:
    features = numpy_job(job([[2, 1], [0, 4]], row_shape=(3,), dim=dim))
    arena = arena_of(features, dim)
    fill(arena, features)
    want = [np.concatenate([features[k][b] for k in features], dim) for b in range(2)]
    assert_all_bits(arena.flat, want)
    np.multiply(features["0"][0], 2, out=arena["0"][0])
    assert_bits(arena["0"][0].copy(), features["0"][0] * 2)
    assert arena.layout == goflat.Layout.of(features, dim=dim)
    assert type(arena.flat[0]) is np.ndarray


@pytest.mark.parametrize("dtype", ["?", ">f4", "U5", "M8[ns]", "i4,f8", object], ids=str)
def test_numpy_dtypes(dtype: Any) -> None:
    entry = np.zeros((2, 3), dtype)
    arena = arena_of({"a": [entry]})
    arena.put("a", 0, entry)
    assert arena.flat[0].dtype == entry.dtype
    assert arena.flat[0].tolist() == entry.tolist()


def test_a_layout_of_another_library_gives_ndarrays() -> None:
    arena = arena_of({"a": [Standard(np.ones((2, 3)))]})
    arena.put("a", 0, np.ones((2, 3)))
    assert_bits(arena.flat[0], np.ones((2, 3)))
    with pytest.raises(goflat.DTypeError, match=r"got helpers\.foreign\.Standard, want numpy"):
        arena.put("a", 0, Standard(np.ones((2, 3))))


def test_torch_is_never_imported_for_numpy() -> None:
    code = """
    import sys, numpy as np, goflat
    arena = goflat.Arena(goflat.Layout.of({"a": [np.ones((2, 3))]}))
    arena.put("a", 0, np.ones((2, 3)))
    assert arena.flat[0].sum() == 6
    assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
    """
    child.run(code, "-W", "ignore::UserWarning:goflat")


def test_numpy_is_not_needed_for_torch() -> None:
    code = """
    import sys
    sys.modules["numpy"] = None
    import torch, goflat
    arena = goflat.Arena(goflat.Layout.of({"a": [torch.ones(2, 3)]}))
    arena.put("a", 0, torch.ones(2, 3))
    assert arena.flat[0].sum() == 6
    assert goflat.Arena(goflat.Layout.of({"a": []})).flat == []
    """
    child.run(code, "-W", "ignore")  # torch says that it misses NumPy


# Memory


def test_memory_grows_by_the_outputs_and_then_no_more() -> None:
    entry = np.ones((1 << 18, 2))
    features = {"a": [entry, entry], "b": [entry, entry]}
    layout = goflat.Layout.of(features)
    arena_of(features)
    tracemalloc.start()
    try:
        arena = goflat.Arena(layout)
        made, _ = tracemalloc.get_traced_memory()
        assert 0 <= made - 4 * entry.nbytes < 50_000  # Python's objects
        tracemalloc.reset_peak()
        for _ in range(3):
            fill(arena, features)
            assert len(arena.flat) == 2
        _, peak = tracemalloc.get_traced_memory()
        assert peak - made < 50_000
    finally:
        tracemalloc.stop()


def test_outputs_die_with_the_arena_and_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        arena = arena_of(ragged())
        watches = [weakref.ref(out) for out in arena.flat]
        slot = arena["0"][0]
        del arena
        assert watches[1]() is None
        assert watches[0]() is not None  # the slot is a view of it
        del slot
        assert watches[0]() is None
    finally:
        gc.enable()


def test_entries_are_not_held() -> None:
    features = ragged()
    arena = arena_of(features)
    fill(arena, features)
    watches = [weakref.ref(t) for entries in features.values() for t in entries]
    del features
    gc.collect()
    assert not any(watch() is not None for watch in watches)
    assert len(arena) == 3


@pytest.mark.parametrize("entry", [torch.empty(1, 3), np.empty((1, 3))], ids=["torch", "numpy"])
def test_out_of_memory(entry: Any) -> None:
    layout = replace(goflat.Layout.of({"a": [entry, entry]}), rows={"a": (1, 1 << 48)})
    with pytest.raises(goflat.OutOfMemoryError, match="allocate"):
        goflat.Arena(layout)


# Errors


def test_unknown_keys_and_batches() -> None:
    arena = arena_of(ragged())
    for look in (lambda: arena["p2"], lambda: arena.put("p2", 0, torch.ones(2, 3))):
        with pytest.raises(KeyError, match=r"no key 'p2', there are \['0', '1', '2'\]"):
            look()
    for batch in 2, -3:
        for look in (lambda b=batch: arena["1"][b], lambda b=batch: arena.put("1", b, None)):
            with pytest.raises(IndexError, match=f"key '1': no batch {batch}, there are 2"):
                look()
    with pytest.raises(TypeError):
        arena.put("1", "0", torch.ones(2, 3))  # type: ignore[arg-type]


MISFITS: dict[str, tuple[Any, type[goflat.Error], str]] = {
    "rows": (torch.ones(3, 3), goflat.ShapeError, r"got \(3, 3\), want \(2, 3\)"),
    "row shape": (torch.ones(2, 4), goflat.ShapeError, r"got \(2, 4\), want \(2, 3\)"),
    "broadcast": (torch.ones(1, 3), goflat.ShapeError, r"got \(1, 3\), want \(2, 3\)"),
    "0-dim": (torch.ones(()), goflat.ShapeError, r"got \(\), want \(2, 3\)"),
    "dtype": (torch.ones(2, 3).double(), goflat.DTypeError, "got float64, want float32"),
    "kind": (np.ones((2, 3), "f4"), goflat.DTypeError, r"got numpy\.ndarray, want torch\.Tensor"),
    "list": ([[1.0]], goflat.DTypeError, r"got list, want torch\.Tensor"),
    "None": (None, goflat.DTypeError, r"got None, want torch\.Tensor"),
    "sparse": (torch.ones(2, 3).to_sparse(), goflat.DTypeError, "got a sparse tensor"),
    "meta": (torch.ones(2, 3, device="meta"), goflat.DeviceError, "got a meta tensor"),
}


@pytest.mark.parametrize("case", MISFITS.values(), ids=MISFITS)
def test_put_what_does_not_fit(case: Any) -> None:
    given_, error, text = case
    arena = arena_of(ragged())
    fill(arena, ragged())
    with pytest.raises(error, match=f"key '0', batch 0: {text}") as caught:
        arena.put("0", 0, given_)
    assert type(caught.value) is error
    assert (caught.value.key, caught.value.batch) == ("0", 0)
    assert_all_bits(arena.flat, oracle(ragged()))


def test_put_a_masked_array() -> None:
    arena = arena_of({"a": [np.zeros(2)]})
    with pytest.raises(goflat.DTypeError, match="MaskedArray, whose mask would be lost"):
        arena.put("a", 0, np.ma.masked_array(np.zeros(2)))


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros], ids=["torch", "numpy"])
def test_put_what_shares_memory(kind: Any) -> None:
    arena = arena_of({"a": [kind((2, 3))], "b": [kind((4, 3))], "c": [kind((2, 3))]})
    (out,) = arena.flat
    for given_ in arena["a"][0], out[:2], out[1:3]:
        with pytest.raises(goflat.OverlapError, match="key 'a', batch 0: got bytes shared"):
            arena.put("a", 0, given_)
    arena["c"][0][:] = 4
    arena.put("a", 0, arena["c"][0])  # another slot is memory apart
    arena.put("c", 0, arena["b"][0][::2])
    assert bool((out[:2] == 4).all())


def handmade(**changes: Any) -> goflat.Layout:
    parts: dict[str, Any] = {
        "keys": ("a", "b"),
        "batches": 2,
        "rows": {"a": (1, 2), "b": (0, 3)},
        "row_shape": (4,),
        "dtype": torch.float32,
        "devices": ("cpu", "cpu"),
        "dim": 0,
    }
    return goflat.Layout(**(parts | changes))


def test_a_layout_made_by_hand() -> None:
    arena = goflat.Arena(handmade())
    assert [tuple(out.shape) for out in arena.flat] == [(1, 4), (5, 4)]
    assert arena.layout.devices == (torch.device("cpu"),) * 2
    assert arena.layout == goflat.Layout.of(arena)
    assert goflat.Arena(handmade(dtype="f2")).layout.dtype == np.float16
    assert [tuple(out.shape) for out in goflat.Arena(handmade(dim=1)).flat] == [(4, 1), (4, 5)]


CONTRADICTIONS: dict[str, tuple[dict[str, Any], type[goflat.Error], str]] = {
    "keys": ({"keys": ("a",)}, goflat.ShapeError, r"got rows of keys \['a', 'b'\], want those"),
    "order": ({"keys": ("b", "a")}, goflat.ShapeError, "in that order"),
    "batches": ({"batches": 3}, goflat.ShapeError, "key 'a': got rows of 2 batches, want 3"),
    "rows": (
        {"rows": {"a": (1, 2), "b": (-1, 3)}},
        goflat.ShapeError,
        r"key 'b': got rows \(-1, 3\), want no negative",
    ),
    "devices": ({"devices": ("cpu",)}, goflat.ShapeError, "got 1 devices, want 2"),
    "dim": ({"dim": 2}, goflat.ShapeError, "got dim 2 for rows of"),
    "dim < 0": ({"dim": -1}, goflat.ShapeError, "got dim -1"),
    "no dtype": ({"dtype": None}, goflat.DTypeError, "got None, want a dtype of torch or NumPy"),
    "odd dtype": ({"dtype": "torch.float32"}, goflat.DTypeError, "got 'torch.float32', want"),
    "no device": ({"devices": ("cpu", "gpu")}, goflat.DeviceError, "batch 1: got 'gpu', want a"),
    "meta": ({"devices": ("cpu", "meta")}, goflat.DeviceError, "batch 1: got meta, want"),
    "numpy": (
        {"dtype": np.float32, "devices": ("cpu", "cuda:0")},
        goflat.DeviceError,
        "batch 1: got cuda:0, want cpu",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_layouts_that_contradict_themselves(case: Any) -> None:
    changes, error, text = case
    with pytest.raises(error, match=text):
        goflat.Arena(handmade(**changes))


def test_what_is_no_layout() -> None:
    with pytest.raises(goflat.DTypeError, match="got dict, want a Layout"):
        goflat.Arena(ragged())  # type: ignore[arg-type]


# Threads


def test_threads_write_to_different_slots() -> None:
    features = job([[50] * 8] * 8, row_shape=(64,))
    arena = arena_of(features)

    def write(key: str) -> None:
        for _ in range(20):
            for b, entry in enumerate(features[key]):
                arena.put(key, b, entry)
            assert len(arena.flat) == 8

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, features))
    assert_all_bits(arena.flat, oracle(features))
