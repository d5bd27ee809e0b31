"""What Dynamo captures of flatten and cat: the nodes of torch.cat, and no others."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

import goflat
from helpers import dynamo
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import tensor

needs_flat = pytest.mark.skipif(
    not dynamo.takes_flat(), reason="Dynamo of this torch breaks its graph at a Flat"
)


def entries() -> dict[str, list[torch.Tensor]]:
    return {
        "a": [tensor((2, 3)), tensor((4, 3), seed=1)],
        "b": [tensor((1, 3), seed=2), tensor((3, 3), seed=3)],
    }


def cats(x: Any, dim: int = 0, dtype: Any = None) -> list[torch.Tensor]:
    """Do what flatten does, as one would write it with torch.cat."""
    if dtype is not None:
        x = {key: [entry.to(dtype) for entry in row] for key, row in x.items()}
    return [torch.cat([row[b] for row in x.values()], dim) for b in range(2)]


CALLS: dict[str, tuple[Any, Any]] = {
    "dict of lists": (goflat.flatten, cats),
    "dict of tuples": (lambda x: goflat.flatten({k: tuple(row) for k, row in x.items()}), cats),
    "OrderedDict": (lambda x: goflat.flatten(OrderedDict(x)), cats),
    "list of dicts": (
        lambda x: goflat.flatten([{k: row[b] for k, row in x.items()} for b in range(2)]),
        cats,
    ),
    "dim": (
        lambda x: goflat.flatten({"a": [x["a"][0]] * 2, "b": [x["a"][0]] * 2}, dim=-1),
        lambda x: cats({"a": [x["a"][0]] * 2, "b": [x["a"][0]] * 2}, -1),
    ),
    "dtype": (
        lambda x: goflat.flatten(x, dtype=torch.float64),
        lambda x: cats(x, dtype=torch.float64),
    ),
    "layout": (
        lambda x: [t * sum(goflat.flatten(x).layout.rows["b"]) for t in goflat.flatten(x)],
        lambda x: [*cats(x)] and [t * 4 for t in cats(x)],
    ),
    "buffer": (
        lambda x: [goflat.flatten(x, packed=True).buffer],
        lambda x: [torch.cat([row[b] for b in range(2) for row in x.values()])],
    ),
    "packed": (
        lambda x: goflat.flatten(x, packed=True),
        lambda x: torch.cat([row[b] for b in range(2) for row in x.values()]).split([3, 7]),
    ),
    "out": (
        lambda x: goflat.flatten(x, out=[torch.empty(3, 3), torch.empty(7, 3)]),
        lambda x: [
            torch.cat([row[b] for row in x.values()], out=torch.empty(rows, 3))
            for b, rows in enumerate((3, 7))
        ],
    ),
    "unflatten": (
        lambda x: goflat.flatten(x).unflatten()["b"],
        lambda x: [cats(x)[0].narrow(0, 2, 1), cats(x)[1].narrow(0, 4, 3)],
    ),
    "unflatten by a layout": (
        lambda x: goflat.unflatten([t + 1 for t in goflat.flatten(x)], goflat.Layout.of(x))["a"],
        lambda x: [(cats(x)[0] + 1).narrow(0, 0, 2), (cats(x)[1] + 1).narrow(0, 0, 4)],
    ),
    "skipped entries": (
        lambda x: goflat.flatten({"z": [torch.zeros(0)] * 2, **x}),
        lambda x: [
            torch.cat([torch.zeros(0), row[0], row[1]]) for row in zip(x["a"], x["b"], strict=True)
        ],
    ),
}
SAME_NODES = ("dict of lists", "dict of tuples", "OrderedDict", "list of dicts", "dim", "dtype")


@needs_flat
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_flatten_in_one_graph(call: Any) -> None:
    ours, theirs = call
    compiled = dynamo.record(ours, fullgraph=True)
    assert_all_bits(list(compiled.call(entries())), list(theirs(entries())))
    assert len(compiled.graphs) == 1
    assert not compiled.breaks()


@needs_flat
@pytest.mark.parametrize("name", SAME_NODES)
def test_the_graph_is_that_of_torch_cat(name: str) -> None:
    """Then nothing after Dynamo can be slower or larger."""
    graphs = []
    for function in CALLS[name]:
        compiled = dynamo.record(function, fullgraph=True)
        compiled.call(entries())
        graphs += compiled.graphs
    assert graphs[0] == graphs[1]
    assert set(graphs[0]) <= {"cat", "to"}


CATS: dict[str, tuple[Any, Any]] = {
    "list": (lambda x: goflat.cat(x["a"]), lambda x: torch.cat(x["a"])),
    "tuple": (lambda x: goflat.cat(tuple(x["a"])), lambda x: torch.cat(x["a"])),
    "dim": (lambda x: goflat.cat([x["a"][0]] * 2, 1), lambda x: torch.cat([x["a"][0]] * 2, 1)),
    "dtype": (
        lambda x: goflat.cat(x["a"], dtype=torch.float64),
        lambda x: torch.cat([t.to(torch.float64) for t in x["a"]]),
    ),
    "out": (
        lambda x: goflat.cat(x["a"], out=torch.empty(6, 3)),
        lambda x: torch.cat(x["a"], out=torch.empty(6, 3)),
    ),
    "before and after": (
        lambda x: goflat.cat([t * 2 for t in x["a"]]).relu(),
        lambda x: torch.cat([t * 2 for t in x["a"]]).relu(),
    ),
}


@pytest.mark.parametrize("call", CATS.values(), ids=CATS)
def test_cat_is_torch_cat(call: Any) -> None:
    graphs, results = [], []
    for function in call:
        compiled = dynamo.record(function, fullgraph=True)
        results.append(compiled.call(entries()))
        graphs += compiled.graphs
        assert not compiled.breaks()
    assert_bits(*results)
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]


@needs_flat
def test_explain_tells_of_one_graph() -> None:
    def step(x: Any) -> Any:
        flat = goflat.flatten({key: [t * 2 for t in row] for key, row in x.items()})
        return goflat.cat(list(flat)), flat.offsets(1), [t.sum() for t in flat]

    told = torch._dynamo.explain(step)(entries())
    assert (told.graph_count, told.graph_break_count) == (1, 0)


def test_a_flat_comes_out_of_a_graph_as_it_is() -> None:
    compiled = dynamo.record(lambda x: goflat.flatten(x, packed=True))
    got, want = compiled.call(entries()), goflat.flatten(entries(), packed=True)
    assert type(got) is goflat.Flat
    assert got.layout == want.layout
    assert got.plan.growth == want.plan.growth
    assert_all_bits(got, want)
    assert_bits(got.buffer, want.buffer)
    assert_all_bits(got.unflatten()["b"], want.unflatten()["b"])


def test_a_flat_goes_into_a_graph() -> None:
    flat = goflat.flatten(entries())
    compiled = dynamo.record(lambda flat: torch.relu(flat[0]) + flat.layout.batches)
    assert_bits(compiled.call(flat), flat[0].relu() + 2)


@pytest.mark.parametrize("rows", [(0, 0), (0, 2)])
def test_empty_jobs(rows: tuple[int, int]) -> None:
    x = {"a": [tensor((rows[0], 3))], "b": [tensor((rows[1], 3))]}
    compiled = dynamo.record(goflat.flatten)
    assert_all_bits(compiled.call(x), goflat.flatten(x))
    assert compiled.call({}) == []
    assert compiled.call({"a": []}) == []


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_but_skipped_entries(packed: bool) -> None:
    x = {"a": [torch.zeros(0), torch.zeros(2, 3)], "b": [torch.zeros(0), torch.zeros(0)]}
    got = dynamo.record(lambda x: list(goflat.flatten(x, packed=packed))).call(x)
    assert [tuple(t.shape) for t in got][1] == (2, 3)
    assert got[0].numel() == 0


def test_arrays_of_numpy_are_joined_outside_of_graphs() -> None:
    import numpy as np

    arrays = [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)]
    compiled = dynamo.record(lambda t: (goflat.cat(arrays), t + 1))
    got, t = compiled.call(torch.zeros(1))
    assert_bits(got, np.concatenate(arrays))
    assert_bits(t, torch.ones(1))
