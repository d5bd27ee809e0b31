"""CuPy arrays in, CuPy arrays out, from CuPy's own allocator and on its current stream."""

from __future__ import annotations

from typing import Any

import pytest

import goflat

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu


def job(dtype: Any = "float32") -> dict[str, list[Any]]:
    make = cp.random.RandomState(0).randint
    shapes = {"a": [2, 0, 5], "b": [1, 4, 0]}
    return {k: [make(0, 100, (n, 3, 4)).astype(dtype) for n in rows] for k, rows in shapes.items()}


def oracle(features: dict[str, list[Any]], dim: int = 0) -> list[Any]:
    return [cp.concatenate(column, dim) for column in zip(*features.values(), strict=True)]


def assert_same(flat: Any, want: list[Any]) -> None:
    assert len(flat) == len(want)
    for got, expected in zip(flat, want, strict=True):
        assert type(got) is cp.ndarray
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert bool((got == expected).all())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "complex64", "bool"])
def test_values(dtype: str) -> None:
    assert_same(goflat.flatten(job(dtype)), oracle(job(dtype)))


def test_dim_1_strided_and_reversed() -> None:
    features = {k: [x.transpose(2, 0, 1)[::-1, :, ::2] for x in xs] for k, xs in job().items()}
    assert_same(goflat.flatten(features, dim=1), oracle(features, 1))


def test_outputs_come_from_cupys_pool() -> None:
    pool = cp.get_default_memory_pool()
    features = job()
    before = pool.used_bytes()
    flat = goflat.flatten(features)
    assert pool.used_bytes() - before >= sum(x.nbytes for x in flat)


def test_packed_and_out() -> None:
    features = job()
    flat = goflat.flatten(features, packed=True)
    assert_same(flat, oracle(features))
    assert bool((flat.buffer == cp.concatenate(list(flat))).all())
    outs = [cp.zeros(x.shape, x.dtype) for x in flat]
    assert goflat.flatten(features, out=outs)[0] is outs[0]
    assert_same(outs, oracle(features))


def test_layout_and_unflatten() -> None:
    features = job()
    flat = goflat.flatten(features)
    assert flat.layout == goflat.Layout.of(features)
    assert_same(flat.unflatten()["b"], features["b"])


def test_current_stream() -> None:
    features = job()
    with cp.cuda.Stream(non_blocking=True) as stream:
        cp.cuda.get_current_stream().synchronize()
        doubled = {k: [x * 2 for x in xs] for k, xs in features.items()}
        flat = goflat.flatten(doubled)
        del doubled
        stream.synchronize()
    assert_same(flat, oracle({k: [x * 2 for x in xs] for k, xs in features.items()}))


def test_errors_name_key_and_batch() -> None:
    with pytest.raises(goflat.ShapeError, match=r"key 'b', batch 0: got \(2, 4\), want \(\*, 3\)"):
        goflat.flatten({"a": [cp.zeros((2, 3))], "b": [cp.zeros((2, 4))]})
    with pytest.raises(goflat.DTypeError, match="key 'b', batch 0"):
        goflat.flatten({"a": [cp.zeros(2)], "b": [cp.zeros(2, "int32")]})
