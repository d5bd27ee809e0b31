"""CuPy arrays in, CuPy arrays out, from CuPy's own allocator and on its current stream."""

from __future__ import annotations

import pickle
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


def test_layouts_are_texts_and_travel() -> None:
    """CuPy's devices compare, but do not hash."""
    flat = goflat.flatten(job())
    assert "CUDA Device 0" in repr(flat.layout)
    assert "CUDA Device 0" in str(flat.plan)
    assert pickle.loads(pickle.dumps(flat.layout)) == flat.layout
    assert hash(flat.layout) == hash(goflat.Layout.of(job()))


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


class Foreign:
    """A stream of a library that speaks no more than the protocol."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.ptr


@pytest.mark.parametrize("form", [lambda s: s, Foreign], ids=["CuPy's", "protocol"])
def test_wait_for_a_side_stream(form: Any) -> None:
    """Entries are what a slow stream makes of them before the current one may read."""
    slow = cp.ElementwiseKernel(
        "int64 n", "float32 y", "long long t = clock64(); while (clock64() - t < n); y = 7", "slow"
    )
    side, features = cp.cuda.Stream(non_blocking=True), job()
    slow(1, cp.zeros(1, "float32"))
    cp.cuda.Device().synchronize()
    with side:
        slow(100_000_000, features["b"][1])  # 50 ms
    flat = goflat.flatten_(features, max_growth=1 << 30, wait=[form(side)])
    assert bool((flat[1] == 7).all())
    assert features == {}


def test_wait_for_a_stream_of_torch() -> None:
    torch = pytest.importorskip("torch")
    features = job()
    want = oracle(features)
    assert_same(goflat.flatten_(features, max_growth=1 << 30, wait=[torch.cuda.Stream()]), want)


def test_memory_is_not_recorded_for_a_pool_that_cannot() -> None:
    with pytest.raises(goflat.DTypeError, match=r"got cupy\.ndarray, want a tensor"):
        goflat.record_stream(job()["a"], cp.cuda.Stream())


def test_chains_with_torch() -> None:
    """CuPy's memory as tensors, and results as CuPy's again: each lives as long as it is used."""
    torch = pytest.importorskip("torch")
    features = job()
    want = [x.copy() for x in oracle(features)]
    tensors = {k: [torch.from_dlpack(x) for x in xs] for k, xs in features.items()}
    del features
    flat = goflat.flatten(tensors)
    tensors.clear()
    back = [cp.from_dlpack(out) for out in flat]
    del flat
    cp.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()
    assert_same(back, want)


@pytest.mark.usefixtures("any_engine")
def test_frameworks_do_not_mix() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(goflat.DTypeError, match=r"key 'b', batch 0: got cupy\.ndarray, want torch"):
        goflat.flatten({"a": [torch.zeros(2, device="cuda")], "b": [cp.zeros(2, "float32")]})
    with pytest.raises(goflat.DTypeError, match=r"out of type torch\.Tensor, want cupy\.ndarray"):
        goflat.flatten({"a": [cp.zeros(2, "f4")]}, out=[torch.zeros(2, device="cuda")])
