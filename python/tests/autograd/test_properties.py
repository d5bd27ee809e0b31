"""Any job of any results, some of them held: gradients and values are those of torch.cat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import goflat
from goflat import _native
from helpers.compare import assert_all_bits
from helpers.consuming import LOTS
from helpers.jobs import oracle
from helpers.producers import loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 1,
    "sigmoid": torch.sigmoid,
    "square": lambda x: x * x,
    "transposed": lambda x: (x * 2).t().contiguous().t(),
    "constant": lambda x: x.detach() * 3,
    "linear": lambda x: x @ torch.linspace(-1, 1, 9).view(3, 3),
}


class Line(NamedTuple):
    """How the entries of a key are made."""

    rows: list[int]
    operation: str
    parts: bool  # of one result, or each by itself
    held: int  # number of the entry that somebody holds, if there is one

    def entries(self, seed: int) -> tuple[Tensor, list[Tensor]]:
        leaf = torch.linspace(0.5 + seed, 2 + seed, 3 * sum(self.rows)).view(-1, 3).requires_grad_()
        operation = OPERATIONS[self.operation]
        if self.parts:
            return leaf, list(operation(leaf).split(self.rows))
        return leaf, [operation(part) for part in leaf.split(self.rows)]


@st.composite
def jobs(draw: st.DrawFn) -> list[Line]:
    batches = draw(st.integers(1, 3))
    counts = st.lists(st.integers(0, 4), min_size=batches, max_size=batches)
    line = st.builds(
        Line, counts, st.sampled_from(list(OPERATIONS)), st.booleans(), st.integers(-4, batches - 1)
    )
    return draw(st.lists(line, min_size=1, max_size=4))


def run(job: list[Line], join: Callable[[Any], Any]) -> tuple[list[Any], list[Tensor]]:
    """Return gradients of all leaves, and the values of the outputs and of what was held."""
    made = [line.entries(seed) for seed, line in enumerate(job)]
    leaves = [leaf for leaf, _ in made]
    held = [
        entries[line.held] for line, (_, entries) in zip(job, made, strict=True) if line.held >= 0
    ]
    features = {k: made.pop(0)[1] for k in range(len(job))}
    flat = join(features)
    values = [t.detach().clone() for t in (*flat, *held)]
    total = loss([*flat, *held])
    if total.requires_grad:
        total.backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None], values


@given(jobs())
def test_flatten_(job: list[Line]) -> None:
    def consume(features: Any) -> Any:
        flat = goflat.flatten_(features, max_growth=LOTS)
        assert features == {}
        return flat

    for got, want in zip(run(job, consume), run(job, oracle), strict=True):
        assert_all_bits(got, want)


@given(jobs(), st.booleans())
def test_flatten(job: list[Line], packed: bool) -> None:
    def flatten(features: Any) -> Any:
        return goflat.flatten(features, packed=packed)

    for got, want in zip(run(job, flatten), run(job, oracle), strict=True):
        assert_all_bits(got, want)
