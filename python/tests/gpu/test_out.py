"""``out=``: filled in place whatever its strides, or refused before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    GIB,
    ROWS,
    bits,
    check_bits,
    entries,
    integers,
    job,
    need,
    oracle,
    wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Outputs of the small job, which have 5 and 7 rows of 3, and the tensor that each is a view of.
HAYS: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "rows apart": lambda n: cut(bits((2 * n + 2, 3)), lambda t: t[1:-1:2]),
    "columns apart": lambda n: cut(bits((n, 8)), lambda t: t[:, 1:7:2]),
    "inside a table": lambda n: cut(bits((n + 2, 9)), lambda t: t[1:-1, 3:6]),
    "transposed": lambda n: cut(bits((5, n)), lambda t: t[1:4].t()),
    "a part": lambda n: cut(bits((n + 4, 3)), lambda t: t[2:-2]),
}


def cut(hay: Tensor, view: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    return hay, view(hay)


@pytest.mark.memcheck
@pytest.mark.parametrize("kind", HAYS)
def test_strided_out_is_filled_in_place(kind: str) -> None:
    features = job()
    pairs = [HAYS[kind](n) for n in (5, 7)]
    outs = [out for _, out in pairs]
    strides = [out.stride() for out in outs]
    expected = []
    for (hay, out), want in zip(pairs, oracle(features), strict=True):
        whole = integers(hay).clone()
        whole.as_strided(out.shape, out.stride(), out.storage_offset()).copy_(want)
        expected.append(whole)
    flat = goflat.flatten(features, out=outs)
    assert all(a is b for a, b in zip(flat, outs, strict=True))
    assert [out.stride() for out in outs] == strides
    check_bits([hay for hay, _ in pairs], expected)  # neighbours too


@pytest.mark.memcheck
def test_channels_last_out() -> None:
    features = job([[2, 3], [4, 1]], (3, 5, 7))
    outs = [
        torch.empty(n, 3, 5, 7, device=DEVICE).to(memory_format=torch.channels_last) for n in (6, 4)
    ]
    goflat.flatten(features, out=outs)
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in outs)
    check_bits(outs, oracle(features))


@pytest.mark.memcheck
@pytest.mark.parametrize("dim", [0, 1])
def test_packed_out(dim: int) -> None:
    features = job(ROWS, (4,), dim=dim)
    hay = bits((40, 40))
    whole = integers(hay).clone()
    rows, cols = (12, 4) if dim == 0 else (4, 12)
    out = hay[3 : 3 + 2 * rows : 2, 5 : 5 + cols]
    want = torch.cat(oracle(features, dim), dim)
    whole[3 : 3 + 2 * rows : 2, 5 : 5 + cols] = want
    flat = goflat.flatten(features, out=out, packed=True, dim=dim)
    assert flat.buffer is out
    check_bits(list(flat), oracle(features, dim))
    check_bits([hay], [whole])


@pytest.mark.memcheck
def test_outs_of_one_buffer_side_by_side() -> None:
    features = job()
    buffer = bits((7, 6))
    outs = [buffer[:5, ::2], buffer[:, 1::2]]  # they interleave and share no byte
    goflat.flatten(features, out=outs)
    check_bits(outs, oracle(features))


WRONG: dict[str, tuple[type[goflat.Error], Callable[[dict[str, list[Tensor]]], list[Tensor]]]] = {
    "shape": (goflat.ShapeError, lambda _: [bits((5, 3)), bits((3, 7))]),
    "too few": (goflat.ShapeError, lambda _: [bits((5, 3))]),
    "dtype": (goflat.DTypeError, lambda _: [bits((5, 3)), bits((7, 3), torch.int32)]),
    "device": (goflat.DeviceError, lambda _: [bits((5, 3)), bits((7, 3), device="cpu")]),
    "expanded": (goflat.OverlapError, lambda _: [bits((5, 3)), bits((1, 3)).expand(7, 3)]),
    "one twice": (goflat.OverlapError, lambda _: two_of(bits((7, 3)))),
    "an entry": (goflat.OverlapError, lambda x: [bits((5, 3)), overlapping(x)]),
    "grad": (goflat.OwnershipError, lambda _: [bits((5, 3)), bits((7, 3)).requires_grad_()]),
}


def two_of(t: Tensor) -> list[Tensor]:
    return [t[:5], t]


def overlapping(features: dict[str, list[Tensor]]) -> Tensor:
    """Return an out whose last row is the first of an entry."""
    buffer = bits((11, 3))
    features["1"][1] = buffer[6:10]
    return buffer[:7]


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_outs_raise_before_anything_is_written(kind: str) -> None:
    features = job()
    cls, make = WRONG[kind]
    if kind == "device" and DEVICE.type == "cpu":
        pytest.skip("there is one device only")
    outs = make(features)
    before = [integers(t).contiguous().clone() for t in [*outs, *entries(features)]]
    with pytest.raises(cls):
        goflat.flatten(features, out=outs)
    wait()
    check_bits([t.detach() for t in [*outs, *entries(features)]], before)


@pytest.mark.memcheck
def test_an_out_that_interleaves_with_an_entry() -> None:
    buffer = bits((7, 6))
    features = {"a": [buffer[:3, ::2], bits((2, 3))], "b": [bits((2, 3)), buffer[3:, ::2]]}
    want = oracle(features)
    outs = [buffer[:5, 1::2], bits((6, 3))]
    goflat.flatten(features, out=outs)
    check_bits(outs, want)


def test_versions_are_counted() -> None:
    """What autograd saved of an out is stale afterwards."""
    out = bits((12, 3))
    before = out._version
    goflat.flatten(job(), out=out, packed=True)
    assert out._version > before
    assert goflat.cat([bits((2, 3)), bits((10, 3))], out=out) is out


def test_huge_views_are_compared_exactly(large: None) -> None:
    """Whether strided views of 16 GiB share a byte is not looked up byte by byte."""
    need(20 * GIB)
    buffer = torch.empty(2**31, 2, dtype=torch.int32, device=DEVICE)
    features = {"a": [buffer[: 2**20, 0]], "b": [buffer[-(2**20) :, 0]]}
    features["a"][0].fill_(1)
    features["b"][0].fill_(2)
    (out,) = goflat.flatten(features, out=[buffer[2**20 : 3 * 2**20, 1]])
    assert bool((out[: 2**20] == 1).all())
    assert bool((out[2**20 :] == 2).all())
    with pytest.raises(goflat.OverlapError):
        goflat.flatten(features, out=[buffer[: 2 * 2**20, 0]])
