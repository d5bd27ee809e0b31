"""How much of goflat the Dynamo of this torch can see through."""

from __future__ import annotations

from functools import cache

import torch


class _Named(list[torch.Tensor]):
    __slots__ = ("name",)

    name: int


def _name(t: torch.Tensor) -> torch.Tensor:
    made = _Named([t * 2])
    made.name = 3
    return made[0]


@cache
def takes_flat() -> bool:
    """Report whether a list with attributes, as a Flat is, leaves a graph whole: not so in 2.6."""
    try:
        torch.compile(_name, backend="eager", fullgraph=True)(torch.ones(2))
    except torch._dynamo.exc.Unsupported:
        return False
    finally:
        torch.compiler.reset()
    return True
