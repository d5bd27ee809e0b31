"""When compiled functions are compiled again: as often as with torch.cat."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import goflat
from helpers import child, dynamo
from helpers.compare import assert_all_bits
from helpers.jobs import job, oracle

# At first no 0 and no 1, for which torch compiles anew, and no size twice: it ties such together.
ROWS = [[[2, 4], [5, 6]], [[5, 4], [6, 3]], [[7, 8], [9, 3]], [[6, 11], [12, 13]], [[3, 3], [3, 3]]]


def flat(x: Any) -> list[torch.Tensor]:
    return list(goflat.flatten(x))


def cat(x: Any) -> list[torch.Tensor]:
    return [goflat.cat([row[b] for row in x.values()]) for b in range(2)]


def plain(x: Any) -> list[torch.Tensor]:
    return [torch.cat([row[b] for row in x.values()]) for b in range(2)]


FUNCTIONS = [cat, *([flat] if dynamo.takes_flat() else [])]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_equal_shapes_compile_once(function: Any) -> None:
    compiled = dynamo.record(function, fullgraph=True)
    for _ in range(4):
        x = job(ROWS[0])
        assert_all_bits(compiled.call(x), oracle(x))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_other_rows_compile_as_often_as_with_torch_cat(function: Any, dynamic: Any) -> None:
    counts = []
    for each in (function, plain):
        compiled = dynamo.record(each, fullgraph=True, dynamic=dynamic)
        for rows in ROWS:
            x = job(rows)
            assert_all_bits(compiled.call(x), oracle(x))
        counts.append(len(compiled.graphs))
    assert counts[0] <= counts[1]
    if dynamic:
        assert counts[0] == 1


@pytest.mark.parametrize("function", FUNCTIONS)
def test_marked_rows_stay_open(function: Any) -> None:
    """mark_dynamic raises where a guard pins the size that it marks."""
    compiled = dynamo.record(function, fullgraph=True)
    for rows in ROWS:
        x = job(rows)
        for row in x.values():
            for t in row:
                torch._dynamo.mark_dynamic(t, 0)
        assert_all_bits(compiled.call(x), oracle(x))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_depend_on_data(function: Any, ndim: int) -> None:
    """As of detections above a threshold: no size of theirs may be asked for."""

    def step(x: Any) -> list[torch.Tensor]:
        def chosen(t: torch.Tensor) -> torch.Tensor:
            return t[t[:, 0] > 0] if ndim == 2 else t[:, 0][t[:, 0] > 0]

        return function({key: [chosen(t) for t in row] for key, row in x.items()})

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = dynamo.record(step, fullgraph=True)
        for seed in range(3):
            torch.manual_seed(seed)
            x = {key: [torch.randn(6, 3) for _ in range(2)] for key in "ab"}
            assert_all_bits(compiled.call(x), step(x))
    assert len(compiled.graphs) == 1


def test_compiled_before_goflat_has_met_torch() -> None:
    """What goflat learns of torch at first use must not look to Dynamo like a change."""
    code = """
    import goflat, torch
    graphs = []
    def backend(module, _):
        graphs.append(module)
        return module.forward
    step = torch.compile(lambda a, b: goflat.cat([a, b]) + 1, backend=backend, fullgraph=True)
    for seed in range(3):
        a, b = torch.full((2, 3), float(seed)), torch.ones(1, 3)
        assert step(a, b).equal(torch.cat([a, b]) + 1)
    assert goflat.cat([a, b]).equal(torch.cat([a, b]))
    assert step(a, b).equal(torch.cat([a, b]) + 1)
    print(len(graphs))
    """
    assert child.run(code) == "1\n"
