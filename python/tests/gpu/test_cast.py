"""``dtype=`` on a GPU: every pair of floats as that GPU's torch converts, without temporaries."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch

import goflat
from goflat import _api
from gpu.support import DEVICE, DRY, check_bits
from helpers.patterns import FLOATS, patterns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from torch import Tensor


@pytest.fixture(scope="module", autouse=True)
def _no_patterns_stay() -> Iterator[None]:
    """Give the patterns back: other tests want segments of their own."""
    yield
    patterns.cache_clear()


@pytest.fixture(autouse=True)
def _natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be left to torch."""

    def left(*_: Any) -> Any:
        raise AssertionError("left to torch")

    if not DRY:
        monkeypatch.setattr(_api, "_cast_in_python", left)


@pytest.mark.parametrize(("source", "target"), list(product(FLOATS, FLOATS)), ids=str)
def test_every_pattern(source: torch.dtype, target: torch.dtype) -> None:
    values = patterns(source, str(DEVICE))
    entries = list(values.split([7, 1, 1000, len(values) - 1008]))
    want = torch.cat([e.to(target) for e in entries])
    check_bits([goflat.cat(entries, dtype=target)], [want])
    table = values[:2304].view(24, 96)
    for view in (table, table[:, ::2], table.t()):
        for dim in (0, 1):
            want = torch.cat([view.to(target), view.to(target)], dim)
            check_bits([goflat.cat([view, view.clone()], dim, dtype=target)], [want])


def mixed() -> dict[str, list[Tensor]]:
    """Return a job whose entries are of every dtype, some of them empty or strided."""
    lines = {
        str(d): [patterns(d, str(DEVICE))[: 24 * n].view(n, 24) for n in (2, 0, 50)] for d in FLOATS
    }
    lines["strided"] = [
        patterns(torch.float32, str(DEVICE))[: 24 * n].view(24, n).t() for n in (3, 4, 5)
    ]
    return lines


@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_mixed_dtypes(target: torch.dtype) -> None:
    features = mixed()
    want = [torch.cat([line[b].to(target) for line in features.values()]) for b in range(3)]
    check_bits(goflat.flatten(features, dtype=target), want)
    packed = goflat.flatten(features, dtype=target, packed=True)
    check_bits([*packed, packed.buffer], [*want, torch.cat(want)])
    outs = [torch.empty_like(t.t()).t() if t.numel() else torch.empty_like(t) for t in want]
    goflat.flatten(features, dtype=target, out=outs)
    check_bits([out.contiguous() for out in outs], want)


def test_gradients_are_cast_back() -> None:
    leaves = [torch.randn(3, 4, device=DEVICE, dtype=d, requires_grad=True) for d in FLOATS[:4]]
    weights = torch.arange(48.0, device=DEVICE).view(12, 4).bfloat16()
    ours = torch.autograd.grad(goflat.cat(leaves, dtype=torch.bfloat16), leaves, weights)
    joined = torch.cat([leaf.to(torch.bfloat16) for leaf in leaves])
    check_bits(list(ours), list(torch.autograd.grad(joined, leaves, weights)))


@pytest.mark.skipif(DRY, reason="captures a graph")
def test_captured_and_bound() -> None:
    features = {
        "a": [torch.randn(50, 8, device=DEVICE)],
        "b": [torch.randn(3, 8, device=DEVICE).half()],
    }
    bound = goflat.plan(features, dtype=torch.bfloat16).bind(features)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
        (flat,) = goflat.flatten(features, dtype=torch.bfloat16)
    for value in (2.5, -1e30):
        features["a"][0].fill_(value)
        want = torch.cat([line[0].bfloat16() for line in features.values()])
        graph.replay()
        check_bits([flat, bound.flat[0]], [want, want])
        bound.flat[0].zero_()
        bound()
        check_bits([bound.flat[0]], [want])


@pytest.mark.skipif(DRY, reason="counts what the allocator of a GPU gives")
def test_memory_grows_by_the_outputs() -> None:
    features = {key: [torch.ones(1 << 20, 4, device=DEVICE)] * 2 for key in "abc"}
    expected = goflat.plan(features, dtype=torch.bfloat16).growth
    goflat.flatten(features, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    flat = goflat.flatten(features, dtype=torch.bfloat16)
    assert torch.cuda.max_memory_allocated() - before == flat.plan.growth == expected == 48 << 20
