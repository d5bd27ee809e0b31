"""Asking who else uses entries, in both ways: counts read in place, and attributes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from goflat import _ownership

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

WAYS = ("in place", "by attributes")


@contextmanager
def asking(way: str) -> Iterator[None]:
    """Let the extension ask in one of the two ways."""
    if way == "by attributes":
        _ownership.meet(slow=True)
    assert _ownership.meet()
    yield
    if way == "by attributes":
        _ownership._met.clear()
    assert _ownership.meet()


def reasons(entries: list[Any], expected: int = 0) -> list[int]:
    return [record.reason for record in _ownership.survey(entries, expected)]


def new(*shape: int) -> Tensor:
    return torch.ones(shape)


def conv(trainable: bool) -> Tensor:
    weight = torch.ones(4, 3, 1, requires_grad=trainable)
    return torch.nn.functional.conv1d(new(2, 3, 5), weight)


class Special(torch.Tensor):
    pass
