"""Bound plans on a GPU: streams, graphs, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import goflat

pytestmark = pytest.mark.gpu

JOBS = [
    (4, 4, (50, 256, 7, 7)),
    (64, 32, (8, 16)),
    (8, 8, (4, 64)),
    (256, 4, (16, 256)),
    (1, 1, (3,)),
]


def job(keys: int, batches: int, shape: tuple[int, ...]) -> Any:
    return {str(k): [torch.rand(shape, device="cuda") for _ in range(batches)] for k in range(keys)}


def oracle(features: Any) -> list[torch.Tensor]:
    return [torch.cat(column) for column in zip(*features.values(), strict=True)]


def same(got: Any, want: list[torch.Tensor]) -> bool:
    return all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def change(features: Any) -> None:
    for column in features.values():
        for entry in column:
            entry.random_()


@pytest.mark.parametrize(("keys", "batches", "shape"), JOBS)
@pytest.mark.parametrize("packed", [False, True])
def test_calls_join_what_the_memory_holds_then(
    keys: int, batches: int, shape: tuple[int, ...], packed: bool
) -> None:
    features = job(keys, batches, shape)
    bound = goflat.plan(features, packed=packed).bind(features)
    assert bound._handle
    for _ in range(2):
        change(features)
        assert same(bound(), oracle(features))


@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_of_calls(warm: bool) -> None:
    features = job(64, 32, (8, 16))
    bound = goflat.plan(features).bind(features)
    if warm:
        bound()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flat = bound()
    change(features)
    graph.replay()
    assert same(flat, oracle(features))


def test_calls_allocate_nothing() -> None:
    features = job(64, 32, (8, 16))
    bound = goflat.plan(features).bind(features)
    bound()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for _ in range(1000):
        bound()
    after = torch.cuda.memory_stats()
    for name in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[name] == before[name]


def test_a_call_is_ordered_by_the_current_stream() -> None:
    features = job(4, 2, (1000, 64))
    bound, side = goflat.plan(features).bind(features), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        change(features)
        bound()
    torch.cuda.current_stream().wait_stream(side)
    assert same(bound.flat, oracle(features))


def test_the_memory_outlives_the_containers() -> None:
    features = job(3, 2, (500, 64))
    want, bound = oracle(features), goflat.plan(features).bind(features)
    del features
    junk = [torch.full((500, 64), -1.0, device="cuda") for _ in range(20)]
    assert same(bound(), want)
    del junk
