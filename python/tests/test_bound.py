"""Bound plans: the same outputs from the same memory, call after call."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native

SHAPES = [
    (3, 2, (4, 5), 0, torch.float32),
    (2, 3, (2, 3, 4), 1, torch.int16),
    (1, 1, (5,), 0, torch.uint8),
    (8, 8, (40, 64), 0, torch.float64),
]


def job(keys: int, batches: int, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return {
        str(k): [torch.randint(0, 100, shape).to(dtype) for _ in range(batches)]
        for k in range(keys)
    }


def oracle(features: Any, dim: int = 0) -> list[torch.Tensor]:
    return [torch.cat(column, dim) for column in zip(*features.values(), strict=True)]


def same(got: Any, want: list[torch.Tensor]) -> bool:
    return all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def live() -> int:
    gc.collect()
    return _native._core.bridge_LiveBound() if _native._core is not None else 0


@pytest.fixture(autouse=True)
def _nothing_stays() -> Any:
    before = live()
    yield
    assert live() == before


@pytest.mark.parametrize(("keys", "batches", "shape", "dim", "dtype"), SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_calls_join_what_the_memory_holds_then(
    keys: int, batches: int, shape: tuple[int, ...], dim: int, dtype: torch.dtype, packed: bool
) -> None:
    features = job(keys, batches, shape, dtype)
    bound = goflat.plan(features, dim=dim, packed=packed).bind(features)
    flat, places = bound.flat, [out.data_ptr() for out in bound.flat]
    assert same(flat, oracle(features, dim))
    for _ in range(3):
        for column in features.values():
            for entry in column:
                entry.random_(0, 100)
        assert bound() is flat
        assert same(flat, oracle(features, dim))
    assert [out.data_ptr() for out in flat] == places
    assert (flat.buffer is not None) == packed


def test_it_is_native_where_it_can_be() -> None:
    features = job(2, 2, (3,), torch.float32)
    assert bool(goflat.plan(features).bind(features)._handle) == _native.available()


def test_strided_entries_and_outputs() -> None:
    features = {"a": [torch.rand(6, 4).t(), torch.rand(4, 3)], "b": [torch.rand(4, 12)[:, ::2]] * 2}
    features = {
        key: [entry.narrow(1, 0, 3) for entry in column] for key, column in features.items()
    }
    outs = [torch.zeros(8, 6)[:, ::2] for _ in range(2)]
    bound = goflat.plan(features).bind(features, outs)
    features["a"][0].fill_(3)
    assert all(got is want for got, want in zip(bound(), outs, strict=True))
    assert same(outs, oracle(features))


def test_its_memory_outlives_the_containers() -> None:
    features = job(3, 2, (50, 8), torch.float32)
    want, bound = oracle(features), goflat.plan(features).bind(features)
    del features
    gc.collect()
    junk = [torch.full((50, 8), -1.0) for _ in range(20)]
    assert same(bound(), want)
    del junk


def test_an_entry_that_takes_anothers_place_is_not_read() -> None:
    features = job(2, 1, (4,), torch.float32)
    want, bound = oracle(features), goflat.plan(features).bind(features)
    features["0"][0] = torch.zeros(4)
    assert same(bound(), want)


def test_calls_allocate_nothing() -> None:
    features = job(16, 4, (8, 16), torch.float32)
    bound = goflat.plan(features).bind(features)
    for _ in range(10):
        bound()
    tracemalloc.start()
    try:
        bound()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            bound()
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()


def test_other_frameworks_and_dtypes() -> None:
    arrays = {"a": [np.arange(6.0).reshape(2, 3)], "b": [np.ones((1, 3))]}
    bound = goflat.plan(arrays).bind(arrays)
    arrays["b"][0][:] = 7
    assert np.array_equal(bound()[0], np.concatenate([arrays["a"][0], arrays["b"][0]]))
    features = job(2, 2, (3,), torch.float32)
    converted = goflat.plan(features, dtype=torch.bfloat16).bind(features)
    features["0"][1].fill_(9)
    assert same(converted(), [out.to(torch.bfloat16) for out in oracle(features)])
    nothing: dict[str, list[Any]] = {}
    assert goflat.plan(nothing).bind(nothing)() == []


class Exporter:
    """An array of an unknown library, which exports a copy of what it holds."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.copy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def lazy(name: str) -> torch.Tensor:
    """Return a tensor whose memory does not hold its values."""
    numbers = torch.randn(64, 3, dtype=torch.complex64)
    return numbers.conj() if name == "conj" else numbers.conj().imag


@pytest.mark.parametrize("name", ["conj", "neg"])
@pytest.mark.parametrize("packed", [False, True])
def test_entries_whose_memory_is_not_their_values(name: str, packed: bool) -> None:
    features = {key: [lazy(name), lazy(name)] for key in "ab"}
    bound = goflat.plan(features, packed=packed).bind(features)
    junk = [torch.full((64, 3), -1.0, dtype=features["a"][0].dtype) for _ in range(20)]
    for entry in features["a"]:
        entry.mul_(3)
    assert same(bound(), oracle(features))
    del junk


def test_arrays_of_unknown_libraries_are_refused() -> None:
    features = {key: [Exporter(np.ones((4, 3)))] for key in "ab"}
    with pytest.raises(goflat.DTypeError, match=r"key .a., batch 0: got .*Exporter"):
        goflat.plan(features).bind(features)


@pytest.mark.parametrize("packed", [False, True])
def test_inference_mode(packed: bool) -> None:
    with torch.inference_mode():
        features = job(2, 2, (3,), torch.float32)
        bound = goflat.plan(features, packed=packed).bind(features)
        features["1"][0].fill_(5)
        assert same(bound(), oracle(features))
        features["0"][1].fill_(6)
    assert same(bound(), oracle(features))


def test_what_cannot_be_bound() -> None:
    features = job(2, 2, (3,), torch.float32)
    with pytest.raises(goflat.DTypeError, match="consuming plan"):
        goflat.plan(features, inplace=True).bind(features)
    with pytest.raises(goflat.ShapeError):
        goflat.plan(features).bind(job(2, 2, (4,), torch.float32))
    with pytest.raises(goflat.ShapeError, match="batch 1"):
        goflat.plan(features).bind(features, [torch.empty(6), torch.empty(7)])
    with pytest.raises(goflat.OverlapError):
        shared = torch.rand(6)
        features["0"][0] = shared[:3]
        goflat.plan(features).bind(features, [shared, torch.empty(6)])


@pytest.mark.parametrize("options", [{}, {"packed": True}, {"packed": True, "dtype": torch.half}])
def test_autograd_neither_records_nor_overlooks_it(options: dict[str, Any]) -> None:
    features = {"a": [torch.ones(3, requires_grad=True)], "b": [torch.ones(2)]}
    bound = goflat.plan(features, **options).bind(features)
    assert not bound()[0].requires_grad
    weight = torch.ones(5, requires_grad=True)
    loss = (bound()[0] * weight).sum()
    bound()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_threads_may_call_it() -> None:
    features = job(8, 4, (100, 8), torch.float32)
    bounds = [goflat.plan(features).bind(features) for _ in range(4)]

    def run(bound: Any) -> None:
        for _ in range(50):
            bound()

    threads = [threading.Thread(target=run, args=(bound,)) for bound in bounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(bound.flat, oracle(features)) for bound in bounds)


def test_threads_may_share_it() -> None:
    features = job(8, 4, (100, 8), torch.float32)
    bound = goflat.plan(features).bind(features)
    threads = [threading.Thread(target=lambda: [bound() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(bound.flat, oracle(features))


def test_the_first_line_says_what_it_does() -> None:
    first = str(goflat.Bound.__doc__).partition("\n")[0]
    assert "same outputs from the same storages" in first
