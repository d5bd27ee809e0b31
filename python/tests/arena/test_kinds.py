"""Arenas and autograd, NumPy, memory."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers import child
from helpers.arenas import arena_of, fill
from helpers.compare import assert_all_bits, assert_bits
from helpers.foreign import Standard
from helpers.jobs import job, numpy_job, oracle, ragged

if TYPE_CHECKING:
    from collections.abc import Callable


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
