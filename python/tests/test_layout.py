"""Layout: what a job looks like, as a value."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch

import goflat
from helpers.foreign import Bare
from helpers.jobs import batch_major, job, numpy_job, ragged


def test_attributes() -> None:
    layout = goflat.Layout.of(job([[2, 1], [0, 4]], row_shape=(3, 5)))
    assert layout.keys == ("0", "1")
    assert layout.batches == 2
    assert layout.rows == {"0": (2, 1), "1": (0, 4)}
    assert layout.row_shape == (3, 5)
    assert layout.dtype is torch.float32
    assert layout.devices == (torch.device("cpu"),) * 2
    assert layout.dim == 0


def test_of_another_dim() -> None:
    layout = goflat.Layout.of(job([[2], [4]], row_shape=(3, 5), dim=1), dim=-2)
    assert (layout.dim, layout.row_shape) == (1, (3, 5))
    assert layout.rows == {"0": (2,), "1": (4,)}


def test_both_container_forms_are_equal() -> None:
    assert goflat.Layout.of(ragged()) == goflat.Layout.of(batch_major(ragged()))


def test_of_numpy() -> None:
    layout = goflat.Layout.of(numpy_job(ragged()))
    assert layout.dtype == np.float32
    assert layout.devices == ("cpu", "cpu")


def test_of_other_arrays() -> None:
    assert goflat.Layout.of({"a": [Bare(np.zeros((2, 3)))]}).rows == {"a": (2,)}


def test_of_nothing() -> None:
    for features, keys in (({}, ()), ({"a": []}, ("a",)), ([], ())):
        layout = goflat.Layout.of(features)
        assert (layout.keys, layout.batches, layout.dtype, layout.devices) == (keys, 0, None, ())
        assert dict(layout.rows) == {key: () for key in keys}


def test_of_legacy_entries() -> None:
    layout = goflat.Layout.of({"a": [torch.empty(0)], "b": [torch.empty(2, 3)]})
    assert layout.rows == {"a": (0,), "b": (2,)}
    assert layout.row_shape == (3,)


def test_of_tensors_without_memory() -> None:
    layout = goflat.Layout.of({"a": [torch.empty(2**40, 3, device="meta")]})
    assert layout.rows == {"a": (2**40,)}
    assert layout.devices == (torch.device("meta"),)


def test_errors_are_those_of_flatten() -> None:
    with pytest.raises(goflat.ShapeError, match="key 'b': got 1 batches, want 2"):
        goflat.Layout.of({"a": [torch.empty(1), torch.empty(1)], "b": [torch.empty(1)]})
    with pytest.raises(goflat.DeviceError, match="key 'b', batch 0: got meta, want cpu"):
        goflat.Layout.of({"a": [torch.empty(1)], "b": [torch.empty(1, device="meta")]})


def test_is_a_value() -> None:
    a, b = goflat.Layout.of(ragged()), goflat.Layout.of(ragged())
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1
    others = [
        goflat.Layout.of(job([[2, 1], [0, 4], [3, 3]])),
        goflat.Layout.of(job([[2, 1], [0, 4], [3, 2]], row_shape=(4,))),
        goflat.Layout.of(job([[2, 1], [0, 4], [3, 2]], dtype=torch.float64)),
        goflat.Layout.of(dict(reversed(ragged().items()))),
        goflat.Layout.of({key: entries[::-1] for key, entries in ragged().items()}),
        goflat.Layout.of(numpy_job(ragged())),
    ]
    assert all(a != other for other in others)
    assert a != "layout"


def test_cannot_be_changed() -> None:
    layout = goflat.Layout.of(ragged())
    with pytest.raises(AttributeError):
        layout.batches = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        layout.rows["0"] = (1, 1)  # type: ignore[index]


def test_pickle_and_copy() -> None:
    layout = goflat.Layout.of(ragged())
    for again in (
        pickle.loads(pickle.dumps(layout)),
        copy.copy(layout),
        copy.deepcopy(layout),
    ):
        assert again == layout
        assert hash(again) == hash(layout)


def test_repr() -> None:
    text = "Layout(3 keys x 2 batches, 12 rows of (3,), torch.float32 on cpu, dim=0)"
    assert repr(goflat.Layout.of(ragged())) == text
    assert "no device" in repr(goflat.Layout.of({}))


def test_holds_no_entry() -> None:
    features = ragged()
    watch = weakref.ref(features["0"][0])
    layout = goflat.Layout.of(features)
    del features
    gc.collect()
    assert watch() is None
    assert layout.batches == 2
