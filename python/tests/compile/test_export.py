"""torch.export, and what Inductor and AOTAutograd make of the graph."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch.export import Dim

import goflat
from helpers import dynamo
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job

needs_flat = pytest.mark.skipif(
    not dynamo.takes_flat(), reason="Dynamo of this torch breaks its graph at a Flat"
)
strictly = pytest.mark.parametrize("strict", [False, pytest.param(True, marks=needs_flat)])


# What costs time or memory in the code that Inductor writes.
COSTS = ("async_compile.cpp", "empty_strided_cpu(", "extern_kernels.", "aten.")


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        flat = goflat.flatten({"a": [a, b], "b": [b, a]}, packed=True)
        return flat.buffer, goflat.flatten([{"a": a, "b": b}])[0], goflat.cat([b, a])


class Chosen(torch.nn.Module):
    """Rows that depend on data, as detections above a threshold do."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        rows = {"a": [a[a[:, 0] > 0]], "b": [b[b[:, 0] > 0]]}
        flat = goflat.flatten({"a": [a[:, 0][a[:, 0] > 0]], "b": [b[:, 0][b[:, 0] > 0]]})
        return goflat.flatten(rows)[0], flat[0]


@strictly
@pytest.mark.parametrize("model", [Model(), Chosen()], ids=["all forms", "rows of data"])
def test_export(model: Any, strict: bool) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(4, 3), torch.randn(6, 3)
    open_rows = ({0: Dim("x", min=2, max=99)}, {0: Dim("y", min=2, max=99)})
    program = torch.export.export(model, (a, b), dynamic_shapes=open_rows, strict=strict)
    for _ in range(2):
        assert_all_bits(list(program.module()(a, b)), list(model(a, b)))
        a, b = torch.randn(8, 3), torch.randn(5, 3)


def test_export_of_consuming_calls() -> None:
    """Where Dynamo does not watch they are torch.cat, and empty their list."""

    class Consuming(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            parts = [a + 1, a + 2]
            return goflat.cat_(parts) + len(parts)

    a = torch.ones(2, 3)
    program = torch.export.export(Consuming(), (a,), strict=False)
    assert_bits(program.module()(a), torch.cat([a + 1, a + 2]))


@needs_flat
def test_aot_autograd() -> None:
    def step(x: Any) -> torch.Tensor:
        flat = goflat.flatten({key: [t * 2 for t in row] for key, row in x.items()})
        return flat[0].sum() + 3 * goflat.cat(list(flat)).sum()

    grads = []
    for function in (torch.compile(step, backend="aot_eager", fullgraph=True), step):
        x = {key: [torch.ones(2, 3).requires_grad_() for _ in range(2)] for key in "ab"}
        function(x).backward()
        grads.append([t.grad for row in x.values() for t in row])
    assert_all_bits(*grads)


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler")
@needs_flat
@pytest.mark.filterwarnings("ignore")
def test_inductor_makes_as_many_kernels_and_buffers_as_of_torch_cat() -> None:
    from torch._inductor.utils import run_and_get_code

    def ours(x: Any) -> Any:
        return list(goflat.flatten({key: [t * 2 for t in row] for key, row in x.items()}))

    def theirs(x: Any) -> Any:
        return [torch.cat([row[b] * 2 for row in x.values()]) for b in range(2)]

    x = {key: [t.nan_to_num(0) for t in row] for key, row in job([[2, 4], [5, 3]]).items()}
    results, codes = [], []
    for function in (ours, theirs):
        torch.compiler.reset()
        result, (code, *_) = run_and_get_code(torch.compile(function, fullgraph=True), x)
        results.append(result)
        codes.append([code.count(call) for call in COSTS])
    assert_all_bits(*results)
    assert codes[0] == codes[1]
    assert all(codes[0][:2])
