"""NumPy memory of every kind: what is only read, what may be written, what is left alone."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOTS = 1 << 40
pytestmark = pytest.mark.usefixtures("engine")

Job = dict[str, list[Any]]


def numbers(start: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(start, start + 6).reshape(3, 2).astype(dtype)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def mapped(folder: Path, mode: Any) -> Callable[[Any], Any]:
    """Return what puts an array into a file, and maps that."""

    def put(array: Any) -> Any:
        file = folder / f"{len(list(folder.iterdir()))}"
        array.tofile(file)
        return np.memmap(file, array.dtype, mode, shape=array.shape)

    return put


KINDS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "read-only": read_only,
    "of bytes": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "of a bytearray": lambda x: np.frombuffer(bytearray(x.tobytes()), x.dtype).reshape(x.shape),
    "recarray": lambda x: np.rec.array(x),
    "Fortran order": lambda x: np.asfortranarray(x),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "datetime": lambda x: x.astype("M8[s]"),
    "structured": lambda x: np.array([[(n, n) for n in row] for row in x], "i4,f8"),
    "objects": lambda x: x.astype(object),
    "text": lambda x: x.astype("U7"),
    "big endian": lambda x: x.astype(">f4"),
}


def oracle(features: Job) -> list[np.ndarray]:
    columns = zip(*features.values(), strict=True)
    return [np.concatenate([np.asarray(x) for x in c], dtype=c[0].dtype) for c in columns]


def job(kind: Callable[[Any], Any]) -> Job:
    return {"a": [kind(numbers(0)), kind(numbers(10))], "b": [kind(numbers(20)), kind(numbers(30))]}


def assert_equal(got: Any, want: Any) -> None:
    for one, right in zip(got, want, strict=True):
        assert one.dtype == right.dtype
        assert one.tolist() == right.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_consuming_changes_nothing_that_is_held(kind: str) -> None:
    features = job(KINDS[kind])
    held = [x for line in features.values() for x in line]
    before = [x.tolist() for x in held]
    want = oracle(features)
    assert_equal(goflat.flatten(features), want)
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_equal(flat, want)
    assert features == {}
    assert [x.tolist() for x in held] == before
    for out in flat:
        assert out.flags.writeable
        assert not any(np.shares_memory(out, x) for x in held)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_maps(mode: str, tmp_path: Path) -> None:
    features = job(mapped(tmp_path, mode))
    held = [x for line in features.values() for x in line]
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    want = oracle(features)
    assert_equal(goflat.flatten(features), want)
    assert_equal(goflat.flatten_(features, max_growth=LOTS), want)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == files
    if mode != "r":
        out = mapped(tmp_path, mode)(np.zeros((6, 2), np.float32))
        (got,) = goflat.flatten({"a": held[:1], "b": held[1:2]}, out=[out])
        assert got is out
        assert_equal([np.asarray(out)], [np.concatenate(held[:2])])


@pytest.mark.parametrize("kind", ["read-only", "of bytes", "broadcast"])
def test_read_only_outs_are_refused(kind: str) -> None:
    out = KINDS[kind](np.zeros((6, 2), np.float32))
    with pytest.raises(goflat.OwnershipError, match="batch 0: got a read-only out"):
        goflat.flatten({"a": [numbers()], "b": [numbers()]}, out=[out])
    assert not out.any()


@pytest.mark.parametrize("where", ["a", "b"])
def test_masked_arrays_are_refused(where: str) -> None:
    features = {"a": [numbers()], "b": [numbers()]}
    features[where] = [np.ma.masked_equal(numbers(), 3)]
    match = f"key '{where}', batch 0: got a numpy.ma.MaskedArray"
    for call in goflat.flatten, goflat.flatten_, goflat.plan:
        with pytest.raises(goflat.DTypeError, match=match):
            call(features)
    assert len(features) == 2


# ---- dtypes that extensions of NumPy bring ----


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
@pytest.mark.parametrize("packed", [False, True])
def test_dtypes_of_extensions(name: str, packed: bool) -> None:
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    features = job(lambda x: (x % 8).astype(dtype))
    flat = goflat.flatten(features, packed=packed)
    assert_all_bits(list(flat), oracle(features))
    outs = [np.zeros_like(out) for out in flat]
    goflat.flatten(features, out=outs)
    assert_all_bits(outs, oracle(features))
    assert goflat.Layout.of(features).dtype == dtype
    assert flat.plan.growth == 24 * dtype.itemsize
    (got,) = goflat.flatten({"a": [numbers() % 8]}, dtype=dtype)
    assert_all_bits([got], [(numbers() % 8).astype(dtype)])
    with pytest.raises(goflat.DTypeError, match=f"key 'b', batch 0: got float32, want {name}"):
        goflat.flatten({"a": features["a"][:1], "b": [numbers()]})


def test_structured_dtypes_that_differ() -> None:
    features = {"a": [np.zeros(2, "i4,f8")], "b": [np.zeros(2, "i4,f4")]}
    with pytest.raises(goflat.DTypeError, match="key 'b', batch 0"):
        goflat.flatten(features)
    with pytest.raises(goflat.DTypeError, match="key 'b', batch 0"):
        goflat.flatten({"a": [np.zeros(2, "M8[s]")], "b": [np.zeros(2, "M8[ms]")]})


# ---- tensors over NumPy memory ----


@pytest.mark.parametrize("view", [torch.from_numpy, torch.from_dlpack, torch.as_tensor])
def test_tensors_over_numpy_memory_are_copied(view: Callable[[Any], Any]) -> None:
    arrays = [numbers(0), numbers(10)]
    copies = [array.copy() for array in arrays]
    features = {"a": [view(arrays[0])], "b": [view(arrays[1])]}
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert flat[0].tolist() == np.concatenate(copies).tolist()
    assert_all_bits(arrays, copies)
    flat[0].zero_()
    assert_all_bits(arrays, copies)


def test_numpy_views_of_tensors_are_copied() -> None:
    tensors = [torch.arange(6.0).reshape(3, 2), torch.ones(1, 2)]
    features = {"a": [tensors[0].numpy()], "b": [tensors[1].numpy()]}
    flat = goflat.flatten_(features, max_growth=LOTS)
    flat[0][:] = -1
    assert tensors[0].tolist() == [[0, 1], [2, 3], [4, 5]]


# ---- other libraries ----


class Tall:
    """An array of a library with ``__dlpack__`` and ``__dlpack_device__``, and nothing else."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_arrays_of_any_library_are_never_written_over() -> None:
    arrays = [numbers(0), numbers(10)]
    before = [array.copy() for array in arrays]
    features = {"a": [Tall(arrays[0])], "b": [Tall(arrays[1])]}
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), [np.concatenate(before)])
    flat[0][:] = -1
    assert_all_bits(arrays, before)
    assert features == {}


def test_read_only_arrays_of_any_library() -> None:
    """Whose capsule says so: entries yes, outs no."""
    array = read_only(numbers())
    assert_all_bits(list(goflat.flatten({"a": [Tall(array)]})), [numbers()])
    with pytest.raises(goflat.OwnershipError, match="read-only"):
        goflat.flatten({"a": [Tall(numbers())]}, out=[Tall(read_only(np.zeros((3, 2), "f4")))])


LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "torch": torch.from_numpy,
    "numpy": lambda x: x,
    "other": Tall,
}


@pytest.mark.parametrize(("first", "second"), list(permutations(LIBRARIES, 2)))
@pytest.mark.parametrize("call", [goflat.flatten, goflat.flatten_, goflat.plan, goflat.Layout.of])
def test_libraries_do_not_mix(call: Callable[[Any], Any], first: str, second: str) -> None:
    features = {"a": [LIBRARIES[first](numbers())], "b": [LIBRARIES[second](numbers())]}
    with pytest.raises(goflat.DTypeError, match=r"key 'b', batch 0: got .*, want ") as caught:
        call(features)
    assert (caught.value.key, caught.value.batch) == ("b", 0)
    assert len(features["a"]) == len(features["b"]) == 1
    with pytest.raises(goflat.DTypeError, match="out of type"):
        goflat.flatten({"a": features["a"]}, out=features["b"])
