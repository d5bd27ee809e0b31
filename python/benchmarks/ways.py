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
    """What is promised about the outputs, and the ways that keep it.

    separate: each has memory of its own. packed: they share one. given: the caller has them.
    same again: entries and outputs are those of the call before.
    """

    own: str
    others: tuple[str, ...]
    floor: str  # as many bytes in one piece


CONTRACTS = {
    "separate": Contract("goflat", ("loop", "zip"), "copy"),
    "packed": Contract("goflat packed", ("split",), "copy"),
    "given": Contract("goflat out=", ("cat out=", "foreach copy"), "copy into"),
    "same again": Contract("goflat bound", ("graph",), "copy into"),
}
FLOORS = ("copy", "copy into")


def ways(library: str, d: Features) -> dict[str, Way]:
    """Return all ways for the job `d` by name, without those that its device or goflat lacks."""
    theirs = _torch_ways(d) if library == "torch" else _numpy_ways(d)
    return {**theirs, **_goflat_ways(d)}


def _torch_ways(d: Features) -> dict[str, Way]:
    import torch

    batches = range(len(next(iter(d.values()))))
    outs = [torch.cat(column) for column in zip(*d.values(), strict=True)]
    rows, block = [len(out) for out in outs], torch.cat(outs)
    into = torch.empty_like(block)

    def loop() -> list[Any]:
        return [torch.cat([d[k][b] for k in d]) for b in batches]

    return {
        "loop": loop,
        **({"graph": replayed(loop)} if block.is_cuda else {}),
        "foreach copy": foreach_copy(d),
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


def replayed(way: Way) -> Way:
    """Return a way captured once into a CUDA graph: the same entries and outputs at each call."""
    import torch

    aside = torch.cuda.Stream()  # the first call must not be the captured one
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        way()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = way()

    def replay() -> Any:
        graph.replay()
        return outs

    return replay


def foreach_copy(d: Features, dim: int = 0) -> Way:
    """Return one multi-tensor copy into views of outputs that were made before."""
    import torch

    columns = list(zip(*d.values(), strict=True))
    outs = [torch.cat(column, dim) for column in columns]
    views = [
        view
        for out, column in zip(outs, columns, strict=True)
        for view in out.split([entry.shape[dim] for entry in column], dim)
    ]
    entries = [entry for column in columns for entry in column]

    def copy() -> list[Any]:
        torch._foreach_copy_(views, entries)
        return outs

    return copy


def bound(d: Features, dim: int = 0) -> dict[str, Way]:
    """Return the way that plans once, under its name, if this goflat has it."""
    plan = goflat.plan(d, dim=dim)
    return {"goflat bound": plan.bind(d)} if hasattr(plan, "bind") else {}


def _goflat_ways(d: Features) -> dict[str, Way]:
    outs = list(goflat.flatten(d))
    return {
        **bound(d),
        "goflat": lambda: goflat.flatten(d),
        "goflat packed": lambda: goflat.flatten(d, packed=True),
        "goflat out=": lambda: goflat.flatten(d, out=outs),
    }
