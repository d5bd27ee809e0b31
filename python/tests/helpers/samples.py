"""The samples by which torch tests torch.cat (OpInfo), for flatten and cat. Torch only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

S, M, L = 5, 10, 20


class Sample(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]
    dim: int = 0
    form: Callable[[Tensor], Tensor] = lambda t: t

    def entries(self, dtype: torch.dtype, device: Any) -> list[Tensor]:
        """Return entries in the form of the sample, whose bytes differ."""
        return [self.form(_new(shape, dtype, device, n)) for n, shape in enumerate(self.shapes)]


def _new(shape: tuple[int, ...], dtype: torch.dtype, device: Any, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 60, (count,), generator=generator)
    return raw.to(torch.uint8).view(dtype).view(shape).to(device)


SAMPLES = {
    "last dim": Sample(((S, S), (S, S)), -1),
    "second dim": Sample(((S, S), (S, S)), 1),
    "more rows": Sample(((M, S), (S, S))),
    "middle dim": Sample(((1, 2, 3), (1, 2, 3)), -2),
    "nothing": Sample(((0,), (0,))),
    "legacy (0,) first": Sample(((0,), (S, S)), 1),
    "no rows first": Sample(((0, S), (S, S))),
    "one element": Sample(((1,), (1,))),
    "channels last": Sample(
        ((2, 2, 2, 2),), 1, lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    ),
    "permuted": Sample(((4, 3, 2), (2, 3, 2), (3, 3, 2)), 1, lambda t: t.permute(1, 0, 2)),
    "every other": Sample(((3, 4, 4), (3, 2, 4)), 1, lambda t: t[..., ::2]),
    "legacy (0,) around": Sample(((0,), (3, 2, 2), (0,))),
    "legacy (0,) only": Sample(((0,), (0,), (0,))),
}


def by_flatten(entries: list[Tensor], dim: int) -> Tensor:
    return goflat.flatten({k: [t] for k, t in enumerate(entries)}, dim=dim)[0]


def by_packed(entries: list[Tensor], dim: int) -> Tensor:
    flat = goflat.flatten({k: [t] for k, t in enumerate(entries)}, dim=dim, packed=True)
    assert flat.buffer is not None
    return flat.buffer


def by_out(entries: list[Tensor], dim: int) -> Tensor:
    with torch.no_grad():
        out = torch.empty_like(torch.cat(entries, dim))
        return goflat.cat(entries, dim, out=out)


WAYS: dict[str, Callable[[list[Tensor], int], Tensor]] = {
    "flatten": by_flatten,
    "packed": by_packed,
    "cat": goflat.cat,
    "out": by_out,
}

# Parts of what torch says where it has no kernel for a dtype.
NO_KERNEL = ("not implemented", "Sub-byte", "not supported")


def places(joined: Tensor, entries: list[Tensor], incoming: Tensor) -> list[Any]:
    """Return where the gradients of entries lie, and how, when `incoming` is that of `joined`."""
    if not joined.requires_grad:
        return []
    grads = torch.autograd.grad(joined, entries, incoming)
    return [(g.data_ptr(), g.shape, g.stride(), g.dtype) for g in grads]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


Y = (4, 6)
# What torch.cat refuses, and the error that says so here.
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "out that shares memory with itself": (
        lambda: goflat.cat([_zeros(S, S)] * 2, out=_zeros(1, S).expand(2 * S, S)),
        goflat.OverlapError,
    ),
    "no tensors": (lambda: goflat.cat([], 1), goflat.ShapeError),
    "other sizes": (
        lambda: goflat.cat([_zeros(S, S, L, L), _zeros(S, 0, L - 1, L)], 1),
        goflat.ShapeError,
    ),
    "other sizes, empty first": (
        lambda: goflat.cat([_zeros(S, 0, L - 1, L), _zeros(S, S, L, L)], 1),
        goflat.ShapeError,
    ),
    "fewer dimensions first": (
        lambda: goflat.cat([_zeros(S - 1, 0), _zeros(S, 0, L - 1, L)], 1),
        goflat.ShapeError,
    ),
    "fewer dimensions": (
        lambda: goflat.cat([_zeros(S, 0, L - 1, L), _zeros(S - 1, 0)], 1),
        goflat.ShapeError,
    ),
    "more dimensions of three": (
        lambda: goflat.cat([_zeros(L, 1), _zeros(L, 1, 1), _zeros(L, 1, 1)]),
        goflat.ShapeError,
    ),
    "other sizes of three": (
        lambda: goflat.cat([_zeros(S, 1, M), _zeros(S, 1, 1), _zeros(S, M, 1)], 1),
        goflat.ShapeError,
    ),
    "None": (lambda: goflat.cat([_zeros(S, 1, 1), None]), goflat.DTypeError),
    "zero dimensions": (lambda: goflat.cat([_zeros(), _zeros()]), goflat.ShapeError),
    "a tensor instead of a list, with another out": (
        lambda: goflat.cat(_zeros(2, 3), out=_zeros(2, 3).double()),
        goflat.Error,
    ),
    "out that is an entry": (lambda: _into_an_entry(), goflat.Error),
    "out that is part of an entry": (lambda: _into_a_part(), goflat.Error),
}


def _into_an_entry() -> Tensor:
    entry = _zeros(*Y)
    return goflat.cat([_zeros(0), entry], out=entry)


def _into_a_part() -> Tensor:
    entry = _zeros(*Y)
    return goflat.cat([_zeros(*Y), entry], out=entry[:2])
