"""Ways to do a job: what people write today, and goflat.

A way is prepared once for a job, off the clock, and then called without arguments. Preparing may
learn sizes, which favours the others: goflat finds them out in each call.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import goflat

if TYPE_CHECKING:
    from collections.abc import Callable

    Features = dict[str, list[Any]]
    Way = Callable[[], Any]


class Contract(NamedTuple):
    """What is promised about the outputs, and the ways that keep it."""

    own: str
    others: tuple[str, ...]
    floor: str  # as many bytes in one piece


CONTRACTS = {
    "new": Contract("goflat", ("loop", "zip", "split"), "copy"),
    "packed": Contract("goflat packed", ("split",), "copy"),
    "given": Contract("goflat out=", ("cat out=",), "copy into"),
}
FLOORS = ("copy", "copy into")


def ways(library: str, d: Features) -> dict[str, Way]:
    """Return all ways for the job `d` by name."""
    theirs = _torch_ways(d) if library == "torch" else _numpy_ways(d)
    return {**theirs, **_goflat_ways(d)}


def _torch_ways(d: Features) -> dict[str, Way]:
    import torch

    batches = range(len(next(iter(d.values()))))
    outs = [torch.cat(column) for column in zip(*d.values(), strict=True)]
    rows, block = [len(out) for out in outs], torch.cat(outs)
    into = torch.empty_like(block)
    return {
        "loop": lambda: [torch.cat([d[k][b] for k in d]) for b in batches],
        "zip": lambda: [torch.cat(t) for t in zip(*d.values())],  # noqa: B905
        "split": lambda: torch.split(torch.cat([d[k][b] for b in batches for k in d]), rows),
        "cat out=": lambda: [
            torch.cat(t, out=out)
            for t, out in zip(zip(*d.values()), outs)  # noqa: B905
        ],
        "copy": block.clone,
        "copy into": lambda: into.copy_(block),
    }


def _numpy_ways(d: Features) -> dict[str, Way]:
    import numpy as np

    batches = range(len(next(iter(d.values()))))
    outs = [np.concatenate(column) for column in zip(*d.values(), strict=True)]
    cuts, block = list(accumulate(len(out) for out in outs))[:-1], np.concatenate(outs)
    into = np.empty_like(block)
    return {
        "loop": lambda: [np.concatenate([d[k][b] for k in d]) for b in batches],
        "zip": lambda: [np.concatenate(t) for t in zip(*d.values())],  # noqa: B905
        "split": lambda: np.split(np.concatenate([d[k][b] for b in batches for k in d]), cuts),
        "cat out=": lambda: [
            np.concatenate(t, out=out)
            for t, out in zip(zip(*d.values()), outs)  # noqa: B905
        ],
        "copy": block.copy,
        "copy into": lambda: np.copyto(into, block),
    }


def _goflat_ways(d: Features) -> dict[str, Way]:
    outs = list(goflat.flatten(d))
    return {
        "goflat": lambda: goflat.flatten(d),
        "goflat packed": lambda: goflat.flatten(d, packed=True),
        "goflat out=": lambda: goflat.flatten(d, out=outs),
    }
