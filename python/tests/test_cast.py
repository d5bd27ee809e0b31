"""``dtype=``: every pair of floats, bit for bit as torch converts, without temporaries."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.patterns import FLOATS, patterns

PAIRS = [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in product(FLOATS, FLOATS)]


def parts(source: Tensor) -> list[Tensor]:
    """Cut where vectors of no width end."""
    return list(source.split([7, 1, 1000, len(source) - 1008]))


def joined(entries: list[Tensor], dtype: torch.dtype, dim: int = 0) -> Tensor:
    return torch.cat([entry.to(dtype) for entry in entries], dim)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pattern(source: torch.dtype, target: torch.dtype) -> None:
    entries = parts(patterns(source))
    assert_bits(goflat.cat(entries, dtype=target), joined(entries, target))
    out = torch.empty(sum(map(len, entries)), dtype=target)
    assert goflat.cat(entries, out=out, dtype=target) is out
    assert_bits(out, joined(entries, target))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_any_layout(source: torch.dtype, target: torch.dtype) -> None:
    table = patterns(source)[: 24 * 96].view(24, 96)
    views = [table, table[:, ::2], table[::2].t(), table.view(24, 4, 24).permute(0, 2, 1)]
    for view in views:
        pair = [view, view.clone()]
        for dim in range(view.dim()):
            assert_bits(goflat.cat(pair, dim, dtype=target), joined(pair, target, dim))


def test_outputs_of_any_strides() -> None:
    entries = [
        patterns(torch.float32)[:960].view(16, 60),
        patterns(torch.float16)[:600].view(10, 60),
    ]
    want = joined(entries, torch.bfloat16)
    for out in (want.new_zeros(60, 26).t(), want.new_zeros(26, 120)[:, ::2]):
        goflat.cat(entries, out=out, dtype=torch.bfloat16)
        assert_bits(out.contiguous(), want)


def mixed() -> dict[str, list[Tensor]]:
    """Return a job whose entries are of every dtype, empty and legacy ones among them."""
    lines: dict[str, list[Tensor]] = {
        str(dtype): [patterns(dtype)[: 6 * n].view(n, 2, 3) for n in (2, 0, 5)] for dtype in FLOATS
    }
    lines["legacy"] = [torch.zeros(0), torch.zeros(0, dtype=torch.float16), torch.zeros(0)]
    return lines


@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_mixed_dtypes(target: torch.dtype) -> None:
    features = mixed()
    want = [joined([line[b] for line in features.values()], target) for b in range(3)]
    flat = goflat.flatten(features, dtype=target)
    assert_all_bits(flat, want)
    assert flat.layout.dtype is target
    packed = goflat.flatten(
        {k: v for k, v in features.items() if k != "legacy"}, dtype=target, packed=True
    )
    assert_all_bits(packed, want)
    assert packed.buffer is not None
    assert_bits(packed.buffer, torch.cat(want))
    outs = [torch.empty_like(t) for t in want]
    goflat.flatten(features, out=outs, dtype=target)
    assert_all_bits(outs, want)


def weigh(outputs: Any) -> Tensor:
    total = torch.zeros(())
    for output in outputs:
        total = total + (output.float() * torch.arange(output.numel()).view(output.shape)).sum()
    return total


@pytest.mark.parametrize("packed", [False, True])
def test_gradients(packed: bool) -> None:
    def leaves() -> dict[str, list[Tensor]]:
        torch.manual_seed(0)
        dtypes = (torch.float32, torch.float16, torch.bfloat16)
        lines = {str(d): [torch.randn(n, 3).to(d).requires_grad_() for n in (2, 3)] for d in dtypes}
        lines["fixed"] = [torch.ones(1, 3), torch.ones(0, 3)]
        return lines

    ours, theirs = leaves(), leaves()
    flat = goflat.flatten(ours, dtype=torch.bfloat16, packed=packed)
    want = [joined([line[b] for line in theirs.values()], torch.bfloat16) for b in range(2)]
    assert_all_bits([t.detach() for t in flat], [t.detach() for t in want])
    weigh(flat).backward()
    weigh(want).backward()
    for key, line in ours.items():
        for got, expected in zip(line, theirs[key], strict=True):
            assert (got.grad is None) == (expected.grad is None)
            if got.grad is not None and expected.grad is not None:
                assert_bits(got.grad, expected.grad)


def test_second_gradients() -> None:
    entry = torch.tensor([[1.0, 2.0]], requires_grad=True)
    (out,) = goflat.flatten({"a": [entry]}, dtype=torch.float64)
    (grad,) = torch.autograd.grad((out**3).sum(), entry, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), entry)
    assert_bits(second, torch.tensor([[6.0, 12.0]]))


def test_out_counts_as_written() -> None:
    out = torch.empty(2, dtype=torch.float64)
    before = out._version
    goflat.cat([torch.zeros(2)], out=out, dtype=torch.float64)
    assert out._version > before


def test_what_is_refused() -> None:
    entry = torch.zeros(2, 3)
    for call, error in (
        (lambda: goflat.cat([entry], out=entry.half(), dtype=torch.float64), goflat.DTypeError),
        (
            lambda: goflat.cat([entry], out=entry.new_zeros(3, 3).half(), dtype=torch.half),
            goflat.ShapeError,
        ),
        (lambda: goflat.cat([entry, torch.zeros(2, 4)], dtype=torch.half), goflat.ShapeError),
        (
            lambda: goflat.cat(
                [entry, entry.view(torch.half)[:, :3]], out=entry, dtype=torch.float
            ),
            goflat.Error,
        ),
        (
            lambda: goflat.cat(
                [entry.requires_grad_()], out=torch.zeros(2, 3).half(), dtype=torch.half
            ),
            goflat.OwnershipError,
        ),
    ):
        with pytest.raises(error):
            call()


def test_growth() -> None:
    plain = {"a": [torch.zeros(4, 6), torch.zeros(2, 6)], "b": [torch.zeros(1, 6).half()] * 2}
    turned = {"a": [torch.zeros(6, 4).t(), torch.zeros(2, 6)], "b": [torch.zeros(1, 6).half()] * 2}
    whole = {"a": [torch.zeros(4, 6).int(), torch.zeros(2, 6)]}
    for features, dim, extra in ((plain, 0, 0), (turned, 0, 4 * 6 * 8), (whole, 0, 6 * 6 * 8)):
        rows = sum(len(t) for line in features.values() for t in line)
        want = rows * 6 * 8 + extra
        assert goflat.plan(features, dim=dim, dtype=torch.float64).growth == want
        assert goflat.flatten(features, dim=dim, dtype=torch.float64).plan.growth == want
        outs = [
            torch.empty(sum(len(line[b]) for line in features.values()), 6).double() for b in (0, 1)
        ]
        assert goflat.flatten(features, out=outs, dtype=torch.float64).plan.growth == 0
    beside = {"a": [torch.zeros(2, 6)], "b": [torch.zeros(2, 3)]}
    assert goflat.flatten(beside, dim=1, dtype=torch.float64).plan.growth == 18 * 8 + 12 * 8
