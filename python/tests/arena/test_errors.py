"""What an Arena refuses; threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers.arenas import arena_of, fill
from helpers.compare import assert_all_bits
from helpers.jobs import job, oracle, ragged

if TYPE_CHECKING:
    pass


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
