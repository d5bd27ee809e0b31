"""NumPy in, NumPy out; and arrays of libraries that goflat does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import goflat
from helpers import child
from helpers.compare import assert_all_bits, assert_bits
from helpers.foreign import Bare, OnGPU, Standard
from helpers.jobs import numpy_job, ragged

pytestmark = pytest.mark.usefixtures("engine")

STRUCT = np.dtype([("id", "i4"), ("box", "f4", (4,)), ("tag", "S3")], align=True)


def arrays(dtype: Any) -> dict[str, list[np.ndarray]]:
    """Return 2 keys x 2 batches of (rows, 2) arrays whose elements all differ."""
    parts = np.arange(20).reshape(10, 2)
    cut = np.split(parts, [3, 3, 7])
    as_dtype = [np.array([[make(x, dtype) for x in row] for row in part], dtype) for part in cut]
    shaped = [part.reshape(-1, 2) for part in as_dtype]
    return {"a": shaped[:2], "b": shaped[2:]}


def make(number: int, dtype: Any) -> Any:
    if np.dtype(dtype) == STRUCT:
        return number, [number] * 4, str(number).encode()
    return object() if dtype is object else number


def oracle(features: dict[str, list[np.ndarray]], dim: int = 0) -> list[np.ndarray]:
    batches = len(next(iter(features.values())))
    return [np.concatenate([features[k][b] for k in features], dim) for b in range(batches)]


@pytest.mark.parametrize(
    "dtype",
    [*"?bBhHiIlLqQefdgFDG", "U5", "S5", "V3", "M8[ns]", "m8[s]", STRUCT, object],
    ids=str,
)
def test_dtypes(dtype: Any) -> None:
    features = arrays(dtype)
    flat = goflat.flatten(features)
    for got, want in zip(flat, oracle(features), strict=True):
        assert got.dtype == np.dtype(dtype)
        assert repr(got.tolist()) == repr(want.tolist())
        assert type(got) is np.ndarray


def test_objects_are_counted() -> None:
    thing = object()
    features = {"a": [np.array([thing, None], object)]}
    for packed in False, True:
        (output,) = goflat.flatten(features, packed=packed)
        assert output[0] is thing
    features["a"][0][0] = None
    assert output[0] is thing


def test_byte_order_is_kept() -> None:
    features = {"a": [np.arange(3, dtype=">f4")], "b": [np.arange(2, dtype=">f4")]}
    for packed in False, True:
        (output,) = goflat.flatten(features, packed=packed)
        assert output.dtype.str == ">f4"
        assert output.tolist() == [0, 1, 2, 0, 1]


def test_fortran_order_gives_contiguous_outputs() -> None:
    features = {"a": [np.asfortranarray(np.arange(12.0).reshape(3, 4))] * 2}
    flat = goflat.flatten(features)
    assert_all_bits(flat, [np.ascontiguousarray(x) for x in oracle(features)])
    assert flat[0].flags.c_contiguous


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::-2],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1], (6, 6)),
        lambda x: x[1:, 1:],
    ],
    ids=["reversed", "step -2", "transposed", "broadcast", "cropped"],
)
def test_views(view: Any, dim: int) -> None:
    a, b = view(np.arange(36.0).reshape(6, 6)), view(np.arange(36.0, 72.0).reshape(6, 6))
    features = {"a": [a, b], "b": [b, a]}
    assert_all_bits(goflat.flatten(features, dim=dim), oracle(features, dim))


def test_read_only_entries() -> None:
    features = numpy_job(ragged())
    for entry in features["0"]:
        entry.flags.writeable = False
    flat = goflat.flatten(features)
    assert_all_bits(flat, oracle(features))
    assert flat[0].flags.writeable


def test_memory_that_is_not_aligned() -> None:
    raw = np.arange(101, dtype=np.uint8)
    entry = raw[1:97].view(np.float64).reshape(4, 3)
    features = {"a": [entry], "b": [entry[1:]]}
    assert_all_bits(goflat.flatten(features), oracle(features))


def test_legacy_empty_entries_are_skipped_as_with_torch() -> None:
    features = {"a": [np.empty(0), np.ones((2, 3))], "b": [np.zeros((1, 3)), np.empty(0)]}
    for packed in False, True:
        flat = goflat.flatten(features, packed=packed)
        assert_all_bits(flat, [np.zeros((1, 3)), np.ones((2, 3))])
    (output,) = goflat.flatten({"a": [np.empty(0)], "b": [np.empty(0)]})
    assert_bits(output, np.empty(0))


def test_dtype_converts_first() -> None:
    features = {"a": [np.arange(3)], "b": [np.array([0.5])]}
    for dtype in np.float32, "f4", np.dtype("f4"):
        (output,) = goflat.flatten(features, dtype=dtype)
        assert_bits(output, np.array([0, 1, 2, 0.5], np.float32))


def test_cat() -> None:
    out = np.zeros((4, 6))[:, ::2]
    parts = [np.ones((1, 3)), np.full((3, 3), 2.0)]
    assert_bits(goflat.cat(parts), np.concatenate(parts))
    assert goflat.cat(parts, out=out) is out
    assert_bits(np.ascontiguousarray(out), np.concatenate(parts))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("packed", [False, True])
def test_subclasses_give_what_numpy_gives(packed: bool) -> None:
    features = {"a": [np.matrix([[1.0, 2.0]])], "b": [np.matrix([[3.0, 4.0]])]}
    (output,) = goflat.flatten(features, packed=packed)
    assert isinstance(output, np.matrix)
    assert output.tolist() == [[1, 2], [3, 4]]


def test_memmap(tmp_path: Any) -> None:
    features = {"a": [np.memmap(tmp_path / "a", np.float32, "w+", shape=(3, 2))]}
    features["a"][0][:] = [[1, 2], [3, 4], [5, 6]]
    (output,) = goflat.flatten(features)
    assert output.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_masked_out() -> None:
    with pytest.raises(goflat.DTypeError, match="MaskedArray"):
        goflat.flatten({"a": [np.zeros(2)]}, out=[np.ma.masked_array(np.zeros(2))])


def test_torch_is_never_imported() -> None:
    code = """
    import sys, numpy as np, goflat
    features = {"a": [np.ones((2, 3))], "b": [np.zeros((1, 3))]}
    flat = goflat.flatten(features)
    goflat.flatten(features, packed=True, dtype=np.float32).unflatten()
    goflat.flatten(features, out=[np.empty((3, 3))]).offsets(0)
    goflat.cat(features["a"])
    try:
        goflat.flatten({"a": [np.ones(2), 3]})
    except goflat.DTypeError:
        pass
    assert flat.layout == goflat.Layout.of(features)
    assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
    """
    child.run(code, "-W", "ignore::UserWarning:goflat")


def test_numpy_is_not_needed_for_torch() -> None:
    code = """
    import sys
    sys.modules["numpy"] = None
    import torch, goflat
    features = {"a": [torch.ones(2, 3)], "b": [torch.zeros(1, 3)]}
    flat = goflat.flatten(features, packed=True)
    assert torch.equal(flat[0], torch.cat([features["a"][0], features["b"][0]]))
    assert flat.offsets(0).tolist() == [0, 2, 3]
    goflat.flatten(features, out=[torch.empty(3, 3)])
    """
    child.run(code, "-W", "ignore")  # torch says that it misses NumPy


# Arrays of other libraries


@pytest.mark.parametrize("packed", [False, True])
def test_other_arrays_come_back_as_their_own_kind(packed: bool) -> None:
    features = {key: [Standard(x) for x in xs] for key, xs in numpy_job(ragged()).items()}
    flat = goflat.flatten(features, packed=packed)
    assert all(type(output) is Standard for output in flat)
    assert_all_bits([output.array for output in flat], oracle(numpy_job(ragged())))
    assert flat.layout == goflat.Layout.of(features)


def test_other_arrays_without_a_namespace_give_numpy() -> None:
    features = {key: [Bare(x) for x in xs] for key, xs in numpy_job(ragged()).items()}
    assert_all_bits(goflat.flatten(features), oracle(numpy_job(ragged())))


def test_other_arrays_as_out() -> None:
    features = {"a": [Standard(np.arange(3.0))]}
    memory = np.zeros(3)
    out = Standard(memory)
    assert goflat.flatten(features, out=[out])[0] is out
    assert memory.tolist() == [0, 1, 2]


def test_other_arrays_with_dtype() -> None:
    features = {"a": [Standard(np.arange(3))], "b": [Standard(np.array([0.5]))]}
    (output,) = goflat.flatten(features, dtype=np.float32)
    assert type(output) is Standard
    assert_bits(output.array, np.array([0, 1, 2, 0.5], np.float32))


def test_other_arrays_on_a_gpu_are_refused() -> None:
    with pytest.raises(goflat.DeviceError, match=r"key 'a', batch 0: got .*OnGPU on DLPack device"):
        goflat.flatten({"a": [OnGPU(np.zeros(2))]})


def test_two_other_libraries_do_not_mix() -> None:
    with pytest.raises(
        goflat.DTypeError, match=r"key 'b', batch 0: got helpers\.foreign\.Bare, want"
    ):
        goflat.flatten({"a": [Standard(np.zeros(2))], "b": [Bare(np.zeros(2))]})
    with pytest.raises(goflat.DTypeError, match=r"got numpy\.ndarray, want helpers\.foreign\.Bare"):
        goflat.flatten({"a": [Bare(np.zeros(2)), np.zeros(2)]})
    with pytest.raises(goflat.DTypeError, match=r"got helpers\.foreign\.Bare, want torch\.Tensor"):
        goflat.flatten({"a": [torch.zeros(2), Bare(np.zeros(2))]})
