"""Errors say which key and batch, what was there and what should have been."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _errors


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


LIST = "a list with one array per batch"
FEATURES = "a mapping of sequences or a sequence of mappings"

# features, options, error, key, batch, got, want
CASES: dict[str, tuple[Any, dict[str, Any], type[goflat.Error], Any, Any, str, str]] = {
    "row shape": (
        {"a": [t(3, 4), t(2, 4)], "b": [t(1, 4), t(5, 6)]},
        {},
        goflat.ShapeError,
        "b",
        1,
        "(5, 6)",
        "(*, 4)",
    ),
    "row shape, dim 1": (
        {"a": [t(3, 4)], "b": [t(2, 4)]},
        {"dim": 1},
        goflat.ShapeError,
        "b",
        0,
        "(2, 4)",
        "(3, *)",
    ),
    "row shape of vectors": (
        {"a": [t(3)], "b": [t(3, 1)]},
        {},
        goflat.ShapeError,
        "b",
        0,
        "(3, 1)",
        "(*,)",
    ),
    "another batch of another row shape": (
        {"a": [t(3, 4), t(3, 5)]},
        {},
        goflat.ShapeError,
        "a",
        1,
        "(3, 5)",
        "(*, 4)",
    ),
    "empty entry of another row shape": (
        {"a": [t(3, 4)], "b": [t(0, 5)]},
        {},
        goflat.ShapeError,
        "b",
        0,
        "(0, 5)",
        "(*, 4)",
    ),
    "another number of dimensions": (
        {"a": [t(3, 4)], "b": [t(3, 4, 1)]},
        {},
        goflat.ShapeError,
        "b",
        0,
        "(3, 4, 1)",
        "(*, 4)",
    ),
    "0-dim first": (
        {"a": [t()]},
        {},
        goflat.ShapeError,
        "a",
        0,
        "a 0-dim tensor",
        "at least 1 dim",
    ),
    "0-dim later": (
        {"a": [t(3)], "b": [t()]},
        {},
        goflat.ShapeError,
        "b",
        0,
        "()",
        "(*,)",
    ),
    "dim too large": (
        {"a": [t(3, 4)]},
        {"dim": 2},
        goflat.ShapeError,
        "a",
        0,
        "dim 2 for shape (3, 4)",
        "-2 <= dim < 2",
    ),
    "dim too small": (
        {"a": [t(3, 4)]},
        {"dim": -3},
        goflat.ShapeError,
        "a",
        0,
        "dim -3 for shape (3, 4)",
        "-2 <= dim < 2",
    ),
    "dim beyond 64 bits": (
        {"a": [t(3, 4)]},
        {"dim": 2**64},
        goflat.ShapeError,
        "a",
        0,
        f"dim {2**64} for shape (3, 4)",
        "-2 <= dim < 2",
    ),
    "dim no int": (
        {"a": [t(3, 4)]},
        {"dim": 1.0},
        goflat.DTypeError,
        None,
        None,
        "dim of type float",
        "an int",
    ),
    "lists of different length": (
        {"a": [t(3), t(2)], "b": [t(1)]},
        {},
        goflat.ShapeError,
        "b",
        None,
        "1 batches",
        "2, as key 'a' has",
    ),
    "key missing": (
        [{"a": t(3), "b": t(2)}, {"a": t(1)}],
        {},
        goflat.ShapeError,
        "b",
        1,
        "no such key",
        "the keys of batch 0, ['a', 'b']",
    ),
    "key too many": (
        [{"a": t(3)}, {"a": t(1), "b": t(2)}],
        {},
        goflat.ShapeError,
        "b",
        1,
        "an extra key",
        "the keys of batch 0, ['a']",
    ),
    "batches without keys": (
        [{}, {}],
        {},
        goflat.ShapeError,
        None,
        0,
        "no keys",
        "at least one key",
    ),
    "later batch without keys": (
        [{"a": t(3)}, {}],
        {},
        goflat.ShapeError,
        None,
        1,
        "no keys",
        "at least one key",
    ),
    "dtype": (
        {"a": [t(3), t(2)], "b": [t(1), t(5, dtype=torch.float64)]},
        {},
        goflat.DTypeError,
        "b",
        1,
        "float64",
        "float32",
    ),
    "dtype of another batch": (
        {"a": [t(3), t(2, dtype=torch.bfloat16)]},
        {},
        goflat.DTypeError,
        "a",
        1,
        "bfloat16",
        "float32",
    ),
    "dtype of an entry that is skipped": (
        {"a": [t(3, 4, dtype=torch.int64)], "b": [t(0)]},
        {},
        goflat.DTypeError,
        "b",
        0,
        "float32",
        "int64",
    ),
    "numpy dtype": (
        {"a": [np.zeros(3)], "b": [np.zeros(3, ">f8")]},
        {},
        goflat.DTypeError,
        "b",
        0,
        ">f8",
        "float64",
    ),
    "device": (
        {"a": [t(3)], "b": [t(2).to("meta")]},
        {},
        goflat.DeviceError,
        "b",
        0,
        "a meta tensor",
        "a tensor with memory to read",
    ),
    "frameworks": (
        {"a": [t(3), t(2)], "b": [t(1), np.zeros(1)]},
        {},
        goflat.DTypeError,
        "b",
        1,
        "numpy.ndarray",
        "torch.Tensor",
    ),
    "masked array": (
        {"a": [np.ma.masked_array([1.0, 2.0])]},
        {},
        goflat.DTypeError,
        "a",
        0,
        "a numpy.ma.MaskedArray, whose mask would be lost",
        "a plain array",
    ),
    "number as entry": (
        {"a": [t(3)], "b": [3.5]},
        {},
        goflat.DTypeError,
        "b",
        0,
        "float",
        "an array",
    ),
    "None as entry": ({"a": [None]}, {}, goflat.DTypeError, "a", 0, "None", "an array"),
    "list as entry": ({"a": [[t(3)]]}, {}, goflat.DTypeError, "a", 0, "list", "an array"),
    "NumPy scalar as entry": (
        {"a": [np.float32(1)]},
        {},
        goflat.DTypeError,
        "a",
        0,
        "numpy.float32",
        "an array",
    ),
    "tensor as list": (
        {"a": t(2, 3)},
        {},
        goflat.DTypeError,
        "a",
        None,
        "torch.Tensor",
        LIST,
    ),
    "ndarray as list": (
        {"a": np.zeros((2, 3))},
        {},
        goflat.DTypeError,
        "a",
        None,
        "numpy.ndarray",
        LIST,
    ),
    "generator as list": (
        {"a": (x for x in [t(3)])},
        {},
        goflat.DTypeError,
        "a",
        None,
        "generator",
        LIST,
    ),
    "None as list": ({"a": [t(3)], "b": None}, {}, goflat.DTypeError, "b", None, "None", LIST),
    "string as list": ({"a": "tensors"}, {}, goflat.DTypeError, "a", None, "str", LIST),
    "dict as list": ({"a": {0: t(3)}}, {}, goflat.DTypeError, "a", None, "dict", LIST),
    "tensor as features": (t(3), {}, goflat.DTypeError, None, None, "torch.Tensor", FEATURES),
    "generator as features": (
        (x for x in [{"a": t(3)}]),
        {},
        goflat.DTypeError,
        None,
        None,
        "generator",
        FEATURES,
    ),
    "None as features": (None, {}, goflat.DTypeError, None, None, "None", FEATURES),
    "string as features": ("abc", {}, goflat.DTypeError, None, None, "str", FEATURES),
    "tensor as batch": (
        [t(3)],
        {},
        goflat.DTypeError,
        None,
        0,
        "torch.Tensor",
        "a mapping from key to array",
    ),
    "list as batch": (
        [{"a": t(3)}, [t(3)]],
        {},
        goflat.DTypeError,
        None,
        1,
        "list",
        "a mapping from key to array",
    ),
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_errors(case: Any) -> None:
    features, options, error, key, batch, got, want = case
    with pytest.raises(error) as caught:
        goflat.flatten(features, **options)
    raised = caught.value
    assert type(raised) is error
    assert (raised.key, raised.batch, raised.got, raised.want) == (key, batch, got, want)
    assert str(raised).endswith(f"got {got}, want {want}")
    assert (f"key {key!r}" in str(raised)) == (key is not None)
    assert (f"batch {batch}:" in str(raised)) == (batch is not None)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_packed_raises_the_same(case: Any) -> None:
    features, options, error, *_ = case
    with pytest.raises(error):
        goflat.flatten(features, packed=True, **options)


@pytest.mark.usefixtures("engine")
def test_message() -> None:
    with pytest.raises(goflat.ShapeError) as caught:
        goflat.flatten({"p2": [t(3, 4)], "p3": [t(5, 6)]})
    assert str(caught.value) == "key 'p3', batch 0: got (5, 6), want (*, 4)"


@pytest.mark.usefixtures("engine")
def test_cat_names_the_position() -> None:
    with pytest.raises(goflat.ShapeError) as caught:
        goflat.cat([t(3, 4), t(5, 4), t(5, 6)])
    assert str(caught.value) == "tensor 2: got (5, 6), want (*, 4)"
    assert (caught.value.key, caught.value.batch) == (None, 2)
    with pytest.raises(goflat.ShapeError) as caught:
        goflat.cat([t(3)], out=t(4))
    assert str(caught.value) == "got out of shape (4,), want (3,)"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ([], goflat.ShapeError, "got no tensors, want at least one"),
        (None, goflat.DTypeError, "got None, want a list of arrays"),
        (t(3), goflat.DTypeError, "got torch.Tensor, want a list of arrays"),
        (iter([t(3)]), goflat.DTypeError, "got list_iterator, want a list of arrays"),
        ([3], goflat.DTypeError, "tensor 0: got int, want an array"),
        ([t(3), None], goflat.DTypeError, "tensor 1: got None, want an array"),
    ],
)
def test_cat_errors(tensors: Any, error: type[goflat.Error], text: str) -> None:
    with pytest.raises(error) as caught:
        goflat.cat(tensors)
    assert str(caught.value) == text


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ({"a": [t(3)]}, np.float32),
        ({"a": [t(3)]}, "float32"),
        ({"a": [np.zeros(3)]}, torch.float32),
        ({"a": [np.zeros(3)]}, "no dtype"),
        ({"a": [np.array(["x"])]}, np.float32),
    ],
    ids=repr,
)
def test_dtype_that_cannot_be(features: Any, dtype: Any) -> None:
    with pytest.raises(goflat.DTypeError, match="key 'a', batch 0: got an entry that does not"):
        goflat.flatten(features, dtype=dtype)


def test_classes_also_are_what_they_replace() -> None:
    assert issubclass(goflat.ShapeError, ValueError)
    assert issubclass(goflat.DTypeError, TypeError)
    assert issubclass(goflat.OverlapError, ValueError)
    for error in (
        goflat.DeviceError,
        goflat.OwnershipError,
        goflat.MemoryLimitError,
        goflat.OutOfMemoryError,
    ):
        assert issubclass(error, RuntimeError)
        assert issubclass(error, goflat.Error)
    assert issubclass(goflat.GrowthWarning, UserWarning)


def test_errors_pickle_with_their_attributes() -> None:
    error = _errors.make("SHAPE", "a", 1, "(2,)", "(3,)")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is goflat.ShapeError
    assert str(again) == str(error)
    assert (again.key, again.batch, again.got, again.want) == ("a", 1, "(2,)", "(3,)")


def test_errors_can_be_made_from_a_text_alone_as_dataloader_workers_do() -> None:
    assert str(goflat.ShapeError("text")) == "text"
    assert goflat.ShapeError("text").key is None


def test_native_text() -> None:
    error = _errors.from_native("DTYPE|1|0|a|b, want c", ["x", "y"])
    assert type(error) is goflat.DTypeError
    assert str(error) == "key 'y', batch 0: got a, want b, want c"
    error = _errors.from_native("DEVICE|-1|-1|cpu|cuda:0", [])
    assert str(error) == "got cpu, want cuda:0"
    assert (error.key, error.batch) == (None, None)
