"""Calls that no graph can hold: right results between two graphs, and a reason that says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import goflat
from helpers import dynamo
from helpers.compare import assert_bits

LOTS = 1 << 30  # bytes that consuming calls may grow


def flatten_(t: torch.Tensor) -> Any:
    features = {"a": [t + 1], "b": [t + 2]}
    flat = goflat.flatten_(features, max_growth=LOTS)
    return flat[0] * 2 + len(features)


def cat_(t: torch.Tensor) -> Any:
    parts = [t + 1, t + 2]
    return goflat.cat_(parts, max_growth=LOTS) * 2 + len(parts)


def plan(t: torch.Tensor) -> Any:
    features = {"a": [t + 1], "b": [t + 2]}
    made = goflat.plan(features)
    return made(features)[0] * 2 + (made.growth - made.nbytes)


def bind(t: torch.Tensor) -> Any:
    features = {"a": [t + 1], "b": [t + 2]}
    bound = goflat.plan(features).bind(features)
    return bound()[0] * 2


def collect(t: torch.Tensor) -> Any:
    with goflat.collect():
        parts = [t + 1, t + 2]
    return goflat.cat(parts) * 2


def arena(t: torch.Tensor) -> Any:
    made = goflat.Arena(goflat.Layout.of({"a": [t], "b": [t]}))
    made["a"][0].copy_(t + 1)
    made.put("b", 0, t + 2)
    return made.flat[0] * 2


def memory(t: torch.Tensor) -> Any:
    return goflat.cat([t + 1, t + 2]) * 2 + sum(goflat.memory().values())


BREAKING = [flatten_, cat_, plan, bind, collect, arena, memory]


@pytest.mark.parametrize("function", BREAKING, ids=lambda f: f.__name__)
def test_results_are_right(function: Any) -> None:
    """For many shapes: they must not be compiled one by one until Dynamo gives up."""
    compiled = dynamo.record(function)
    for rows in range(2, 14):
        t = torch.arange(rows * 3.0).reshape(rows, 3)
        assert_bits(compiled.call(t), torch.cat([t + 1, t + 2]) * 2)
    reasons = [r for r in compiled.breaks() if "goflat" in r or "disable() wrapped" in r]
    assert reasons
    assert len(compiled.graphs) <= 2 * len(reasons) + 2


@pytest.mark.skipif(not dynamo.takes_flat(), reason="Dynamo of torch 2.6 tells no reasons")
@pytest.mark.parametrize("function", BREAKING, ids=lambda f: f.__name__)
def test_the_reason_is_told(function: Any) -> None:
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(torch.ones(2, 3))
    assert "goflat: of its calls only flatten and cat can be part of a graph" in str(caught.value)
    assert "docs/compile.md" in str(caught.value)


def test_a_bound_plan_from_outside() -> None:
    features = {"a": [torch.zeros(2)], "b": [torch.ones(1)]}
    bound = goflat.plan(features).bind(features)
    compiled = dynamo.record(lambda t: bound()[0] + t)
    for value in range(3):
        features["a"][0].fill_(value)
        assert compiled.call(torch.ones(3)).tolist() == [value + 1, value + 1, 2]


def test_slots_from_outside_are_written_in_a_graph() -> None:
    arena = goflat.Arena(goflat.Layout.of({"a": [torch.zeros(2, 3)], "b": [torch.zeros(1, 3)]}))
    slots = [arena["a"][0], arena["b"][0]]

    def produce(slots: Any, t: torch.Tensor) -> None:
        slots[0].copy_(t + 1)
        torch.mul(t[:1], 3, out=slots[1])

    compiled = dynamo.record(produce, fullgraph=True)
    t = torch.arange(6.0).reshape(2, 3)
    compiled.call(slots, t)
    assert_bits(arena.flat[0], torch.cat([t + 1, t[:1] * 3]))


def test_errors_of_consuming_calls_come_through() -> None:
    def step(t: torch.Tensor) -> Any:
        return goflat.flatten_({"a": [t + 1], "b": [(t + 1)[:, :1]]}, max_growth=LOTS)

    compiled = dynamo.record(step)
    with pytest.raises(goflat.ShapeError, match=r"key 'b', batch 0: got \(2, 1\), want \(\*, 3\)"):
        compiled.call(torch.ones(2, 3))


BAD: dict[str, Any] = {
    "shape": (lambda t: goflat.cat([t, t[:, :1]]), goflat.ShapeError, "tensor 1: got"),
    "dim": (lambda t: goflat.cat([t, t], 5), goflat.ShapeError, "dim 5"),
    "dtype": (lambda t: goflat.cat([t, t.double()]), goflat.DTypeError, "tensor 1: got float64"),
    "out": (
        lambda t: goflat.cat([t, t], out=torch.empty(3, 3)),
        goflat.ShapeError,
        r"out of shape \(3, 3\), want \(4, 3\)",
    ),
    "out of a dtype": (
        lambda t: goflat.cat([t, t], out=torch.empty(4, 3, dtype=torch.float64)),
        goflat.DTypeError,
        "out of float64, want float32",
    ),
    "flatten": (
        lambda t: goflat.flatten({"a": [t], "b": [t[:, :1]]}),
        goflat.ShapeError,
        "key 'b', batch 0: got",
    ),
    "lists": (
        lambda t: goflat.flatten({"a": [t], "b": [t, t]}),
        goflat.ShapeError,
        "key 'b': got 2 batches",
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_errors_are_those_of_goflat(bad: Any) -> None:
    function, error, text = bad
    with pytest.raises(error, match=text):
        torch.compile(function, backend="eager")(torch.ones(2, 3))


@pytest.mark.parametrize("name", ["shape", "dim", "dtype", "out"])
def test_errors_in_a_full_graph_quote_goflat(name: str) -> None:
    """Dynamo raises its own, and says in it what it has seen raised."""
    function, error, _ = BAD[name]
    with pytest.raises(torch._dynamo.exc.Unsupported, match=error.__name__):
        torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, 3))
