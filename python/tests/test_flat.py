"""Flat: a list that knows its layout; unflatten; offsets."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import batch_major, job, numpy_job, oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def test_is_a_list() -> None:
    flat = goflat.flatten(ragged())
    assert isinstance(flat, list)
    assert len(flat) == 2
    assert flat[0] is next(iter(flat))
    first, second = flat
    assert (first, second) == (flat[0], flat[-1])
    assert type(flat[:1]) is list
    with pytest.raises(AttributeError):
        flat.something = 1  # type: ignore[attr-defined]


def test_layout_is_that_of_the_features() -> None:
    for features in ragged(), batch_major(ragged()), numpy_job(ragged()):
        assert goflat.flatten(features).layout == goflat.Layout.of(features)
        assert goflat.flatten(features, packed=True).layout == goflat.Layout.of(features)
    along = job([[2, 1], [0, 4]], row_shape=(3, 5), dim=1)
    assert goflat.flatten(along, dim=-2).layout == goflat.Layout.of(along, dim=1)
    for nothing in {}, {"a": []}, []:
        assert goflat.flatten(nothing).layout == goflat.Layout.of(nothing)


def test_layout_is_that_of_the_moment_of_the_call() -> None:
    features = ragged()
    want = goflat.Layout.of(features)
    flat = goflat.flatten(features)
    flat.pop()
    features["0"].pop()
    features["new"] = []
    del features["1"]
    assert flat.layout == want
    assert flat.layout is flat.layout


def test_holds_no_entry_and_no_container() -> None:
    features = ragged()
    watches = [weakref.ref(t) for entries in features.values() for t in entries]
    flat = goflat.flatten(features)
    packed = goflat.flatten(features, packed=True)
    del features
    gc.collect()
    assert not any(watch() is not None for watch in watches)
    assert flat.layout == packed.layout


def test_outputs_taken_out_of_the_list_are_not_held() -> None:
    flat = goflat.flatten(ragged())
    watch = weakref.ref(flat[0])
    del flat[0]
    gc.collect()
    assert watch() is None
    assert flat.layout.batches == 2


def test_unflatten() -> None:
    features = ragged()
    flat = goflat.flatten(features)
    back = flat.unflatten()
    assert type(back) is OrderedDict
    assert list(back) == list(features)
    for key, entries in features.items():
        assert_all_bits(back[key], entries)


@pytest.mark.parametrize("packed", [False, True])
def test_unflatten_gives_views(packed: bool) -> None:
    flat = goflat.flatten(ragged(), packed=packed)
    flat.unflatten()["2"][1].fill_(7)
    assert (flat[1][5:] == 7).all()
    assert not (flat[1][:5] == 7).any()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_unflatten_along(dim: int) -> None:
    features = job([[2, 1], [0, 4]], row_shape=(3, 5), dim=dim)
    back = goflat.flatten(features, dim=dim).unflatten()
    for key, entries in features.items():
        assert_all_bits(back[key], entries)


def test_unflatten_numpy() -> None:
    features = numpy_job(ragged())
    flat = goflat.flatten(features)
    back = flat.unflatten()
    for key, entries in features.items():
        assert_all_bits(back[key], entries)
    back["0"][0][:] = 7
    assert (flat[0][:2] == 7).all()


def test_unflatten_legacy_entries() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))], "b": [torch.empty(0), tensor((1, 3))]}
    back = goflat.flatten(features).unflatten()
    assert [t.shape for t in back["a"]] == [(0,), (2, 3)]
    assert_bits(back["b"][1], features["b"][1])


def test_unflatten_nothing() -> None:
    assert goflat.flatten({"a": []}).unflatten() == {"a": []}


def test_unflatten_something_computed() -> None:
    flat = goflat.flatten(ragged())
    half = [(batch * 2).half() for batch in flat]
    back = goflat.unflatten(half, flat.layout)
    assert_bits(back["1"][1], (ragged()["1"][1] * 2).half())


def test_unflatten_is_differentiable_and_lets_views_be_changed() -> None:
    features = {key: [t.requires_grad_() for t in ts] for key, ts in ragged().items()}
    back = goflat.flatten(features).unflatten()
    back["2"][1].mul_(3)
    back["2"][1].sum().backward()
    assert_bits(features["2"][1].grad, torch.full((2, 3), 3.0))


def test_unflatten_what_does_not_fit() -> None:
    flat = goflat.flatten(ragged())
    with pytest.raises(goflat.ShapeError, match="got 1 arrays, want 2, one per batch"):
        goflat.unflatten(flat[:1], flat.layout)
    with pytest.raises(goflat.ShapeError, match=r"batch 1: got \(7, 4\), want \(7, 3\)"):
        goflat.unflatten([flat[0], torch.zeros(7, 4)], flat.layout)
    with pytest.raises(goflat.ShapeError, match=r"batch 0: got \(6, 3\), want \(5, 3\)"):
        goflat.unflatten([torch.zeros(6, 3), flat[1]], flat.layout)
    flat.pop()
    with pytest.raises(goflat.ShapeError):
        flat.unflatten()


def test_offsets() -> None:
    flat = goflat.flatten(ragged())
    assert_bits(flat.offsets(0), torch.tensor([0, 2, 2, 5]))
    assert_bits(flat.offsets(1, dtype=torch.int32), torch.tensor([0, 1, 5, 7], dtype=torch.int32))
    assert_bits(flat.offsets(-1, device=torch.device("cpu")), flat.offsets(1))
    assert flat.offsets(0, device="meta").device.type == "meta"


def test_offsets_numpy() -> None:
    flat = goflat.flatten(numpy_job(ragged()))
    assert_bits(flat.offsets(0), np.array([0, 2, 2, 5]))
    assert flat.offsets(0, dtype=np.int32).dtype == np.int32


def test_offsets_of_no_such_batch() -> None:
    flat = goflat.flatten(ragged())
    for batch in 2, -3:
        with pytest.raises(IndexError):
            flat.offsets(batch)
    with pytest.raises(IndexError):
        goflat.flatten({}).offsets(0)


@pytest.mark.parametrize("packed", [False, True])
def test_pickle(packed: bool) -> None:
    flat = goflat.flatten(ragged(), packed=packed)
    again = pickle.loads(pickle.dumps(flat))
    assert type(again) is goflat.Flat
    assert_all_bits(again, oracle(ragged()))
    assert again.layout == flat.layout
    assert (again.buffer is None) == (not packed)


def test_shallow_copy_is_a_flat_of_its_own() -> None:
    flat = goflat.flatten(ragged())
    again = copy.copy(flat)
    again.pop()
    assert type(again) is goflat.Flat
    assert len(flat) == 2
    assert again[0] is flat[0]
    assert again.layout == flat.layout


def test_deep_copy() -> None:
    flat = goflat.flatten(ragged())
    again = copy.deepcopy(flat)
    assert_all_bits(again, list(flat))
    assert again[0] is not flat[0]


COPIES = {"pickle": lambda f: pickle.loads(pickle.dumps(f)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("how", [*COPIES, "copy"])
def test_a_copy_keeps_its_plan_and_no_entry(how: str) -> None:
    features = ragged()
    outs = [torch.empty_like(t) for t in goflat.flatten(features)]
    watch = weakref.ref(features["0"][0])
    results = [
        goflat.flatten(features),
        goflat.flatten(features, dtype=torch.float64, packed=True),
        goflat.flatten(features, out=outs),
        goflat.Arena(goflat.Layout.of(features)).flat,
        goflat.flatten_(ragged(), max_growth=1 << 40),
    ]
    del features
    for flat in results:
        again = copy.copy(flat) if how == "copy" else COPIES[how](flat)
        assert again.plan.to_dict() == flat.plan.to_dict()
        assert str(again.plan) == str(flat.plan)
        assert again.plan.why("0", 0) == flat.plan.why("0", 0)
    assert watch() is None
