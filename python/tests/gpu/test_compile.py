"""flatten and cat inside torch.compile on a GPU: Inductor, CUDA graphs, and breaks in the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import DEVICE
from helpers import dynamo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

# Inside a graph it is torch.cat, and what is not plain is the fall-back's.
pytestmark = [
    pytest.mark.usefixtures("any_engine"),
    pytest.mark.filterwarnings("ignore:.*", "error::goflat.GrowthWarning"),
]
needs_flat = pytest.mark.skipif(not dynamo.takes_flat(), reason="a Flat breaks the graph")


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def features(seed: int, rows: int = 6) -> dict[str, list[Tensor]]:
    torch.manual_seed(seed)
    return {
        key: [torch.randn(rows + k + b, 3, 4, device=DEVICE) for b in range(2)]
        for k, key in enumerate("abc")
    }


def produced(x: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {key: [t.sin() * 2 for t in row] for key, row in x.items()}


def ours(x: dict[str, list[Tensor]]) -> list[Tensor]:
    return [t.relu() for t in goflat.flatten(produced(x))]


def theirs(x: dict[str, list[Tensor]]) -> list[Tensor]:
    rows = produced(x).values()
    return [torch.cat([row[b] for row in rows]).relu() for b in range(2)]


@needs_flat
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_makes_the_same_of_it(mode: str) -> None:
    got, want = torch.compile(ours, mode=mode, fullgraph=True), torch.compile(theirs, mode=mode)
    for seed in range(4):
        x = features(seed)
        torch.compiler.cudagraph_mark_step_begin()
        results = [t.clone() for t in got(x)]
        torch.compiler.cudagraph_mark_step_begin()
        for pair in zip(results, want(x), strict=True):
            assert torch.equal(*pair)


@needs_flat
def test_rows_change() -> None:
    compiled = torch.compile(ours, fullgraph=True, dynamic=True)
    eager = torch.compile(theirs, dynamic=True)
    for seed, rows in enumerate((6, 11, 23)):
        x = features(seed, rows)
        for pair in zip(compiled(x), eager(x), strict=True):
            assert torch.equal(*pair)


@needs_flat
def test_as_few_kernels_as_with_torch_cat() -> None:
    counts = []
    for function in (ours, theirs):
        torch.compiler.reset()
        torch._inductor.metrics.reset()
        torch.compile(function)(features(0))
        counts.append(torch._inductor.metrics.generated_kernel_count)
    assert counts[0] == counts[1] > 0


@needs_flat
def test_backward() -> None:
    grads = []
    for function in (ours, theirs):
        torch.compiler.reset()
        x = {key: [t.requires_grad_() for t in row] for key, row in features(0).items()}
        sum(t.sum() for t in torch.compile(function)(x)).backward()  # type: ignore[union-attr]
        grads.append([t.grad for row in x.values() for t in row])
    for pair in zip(*grads, strict=True):
        assert torch.equal(*pair)


@needs_flat
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return goflat.flatten({"a": [a], "b": [b]})[0], goflat.cat([b, a])

    a, b = torch.randn(3, 2, device=DEVICE), torch.randn(4, 2, device=DEVICE)
    program = torch.export.export(Model(), (a, b), strict=strict)
    for pair in zip(program.module()(a, b), (torch.cat([a, b]), torch.cat([b, a])), strict=True):
        assert torch.equal(*pair)


def test_cat_in_a_graph() -> None:
    compiled: Any = torch.compile(lambda x: goflat.cat(x["a"]).relu(), fullgraph=True)
    x = features(0)
    assert torch.equal(compiled(x), torch.cat(x["a"]).relu())


def consumed(x: dict[str, list[Tensor]]) -> Any:
    with goflat.collect():
        made = produced(x)
    flat = goflat.flatten_(made, max_growth=1 << 30)
    return [t.relu() for t in flat], len(made)


def in_arena(x: dict[str, list[Tensor]]) -> Any:
    made = produced(x)
    arena = goflat.Arena(goflat.Layout.of(made))
    for key, row in made.items():
        for b, t in enumerate(row):
            arena.put(key, b, t)
    return [t.relu() for t in arena.flat], 0


def planned(x: dict[str, list[Tensor]]) -> Any:
    made = produced(x)
    plan = goflat.plan(made)
    bound = plan.bind(made)
    return [t.relu() for t in bound()], plan.growth - plan.growth


@pytest.mark.parametrize("function", [consumed, in_arena, planned])
def test_breaks_in_the_graph(function: Any) -> None:
    compiled = torch.compile(function, backend="aot_eager")
    for seed in range(3):
        x = features(seed)
        got, left = compiled(x)
        assert left == 0
        for pair in zip(got, theirs(x), strict=True):
            assert torch.equal(*pair)
