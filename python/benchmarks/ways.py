"""Ways to do a job: what people write today, and goflat.

A way is prepared once for a job, off the clock, and then called without arguments. Preparing may
learn sizes, which favours the others: goflat finds them out in each call. `peers` has those that
need a package or a compiler of their own.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import goflat

from .peers import as_arrays, compiled, foreach_copy, replayed, tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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
    "separate": Contract("goflat", ("loop", "zip", "compiled", "tensordict", "numpy"), "copy"),
    "packed": Contract("goflat packed", ("split",), "copy"),
    "given": Contract("goflat out=", ("cat out=", "foreach copy"), "copy into"),
    "same again": Contract("goflat bound", ("graph",), "copy into"),
}
FLOORS = ("copy", "copy into")


class Prepared(NamedTuple):
    """The ways of a job by name, and why others are not among them."""

    runs: dict[str, Way]
    missing: dict[str, str]


class Unmeasured(Exception):
    """A way that this machine or this job has no use for; the text says why."""


def ways(library: str, d: Features, names: Collection[str] = (), compile_most: int = 0) -> Prepared:
    """Prepare the ways of those names, or all, for the job `d`.

    Compiling takes up to seconds per hundred entries: not for jobs of more than `compile_most`.
    """
    makers = _torch_makers(compile_most) if library == "torch" else _NUMPY_MAKERS
    runs: dict[str, Way] = {}
    missing: dict[str, str] = {}
    for name, make in {**makers, **_GOFLAT_MAKERS}.items():
        if names and name not in names:
            continue
        try:
            runs[name] = make(d)
        except Unmeasured as why:
            missing[name] = str(why)
    return Prepared(runs, missing)


def loop_of(d: Features) -> list[Any]:
    """Return what everybody writes."""
    import torch

    return [torch.cat([d[k][b] for k in d]) for b in range(len(next(iter(d.values()))))]


# ---- torch ----


def _torch_makers(compile_most: int) -> dict[str, Callable[[Features], Way]]:
    return {
        "loop": lambda d: lambda: loop_of(d),
        "zip": _zip,
        "compiled": lambda d: _or_why(compiled, loop_of, d, compile_most),
        "tensordict": lambda d: _or_why(tensordicts, d),
        "numpy": lambda d: _or_why(as_arrays, d),
        "split": _split,
        "cat out=": _cat_out,
        "foreach copy": foreach_copy,
        "graph": _graph,
        "copy": lambda d: _joined(d).clone,
        "copy into": _copy_into,
    }


def _or_why(make: Callable[..., Way | str], *args: Any) -> Way:
    """Return the way that `make` does, or raise the reason that it gives instead."""
    found = make(*args)
    if isinstance(found, str):
        raise Unmeasured(found)
    return found


def _zip(d: Features) -> Way:
    import torch

    return lambda: [torch.cat(t) for t in zip(*d.values())]  # noqa: B905


def _split(d: Features) -> Way:
    import torch

    batches = range(len(next(iter(d.values()))))
    rows = [sum(map(len, column)) for column in zip(*d.values(), strict=True)]
    return lambda: torch.split(torch.cat([d[k][b] for b in batches for k in d]), rows)


def _cat_out(d: Features) -> Way:
    import torch

    outs = loop_of(d)
    return lambda: [
        torch.cat(t, out=out)
        for t, out in zip(zip(*d.values()), outs)  # noqa: B905
    ]


def _graph(d: Features) -> Way:
    if not next(iter(d.values()))[0].is_cuda:
        raise Unmeasured("CUDA graphs need a GPU")
    return replayed(lambda: loop_of(d))


def _joined(d: Features) -> Any:
    import torch

    return torch.cat(loop_of(d))


def _copy_into(d: Features) -> Way:
    import torch

    block = _joined(d)
    into = torch.empty_like(block)
    return lambda: into.copy_(block)


# ---- NumPy ----


def _numpy_split(d: Features) -> Way:
    import numpy as np

    batches = range(len(next(iter(d.values()))))
    sizes = [sum(map(len, column)) for column in zip(*d.values(), strict=True)]
    cuts = list(accumulate(sizes))[:-1]
    return lambda: np.split(np.concatenate([d[k][b] for b in batches for k in d]), cuts)


def _numpy_loop(d: Features) -> Way:
    import numpy as np

    batches = range(len(next(iter(d.values()))))
    return lambda: [np.concatenate([d[k][b] for k in d]) for b in batches]


def _numpy_zip(d: Features) -> Way:
    import numpy as np

    return lambda: [np.concatenate(t) for t in zip(*d.values())]  # noqa: B905


def _numpy_out(d: Features) -> Way:
    import numpy as np

    outs = _numpy_loop(d)()
    return lambda: [
        np.concatenate(t, out=out)
        for t, out in zip(zip(*d.values()), outs)  # noqa: B905
    ]


def _numpy_block(d: Features) -> Any:
    import numpy as np

    return np.concatenate(_numpy_loop(d)())


def _numpy_into(d: Features) -> Way:
    import numpy as np

    block = _numpy_block(d)
    into = np.empty_like(block)
    return lambda: np.copyto(into, block)


_NUMPY_MAKERS: dict[str, Callable[[Features], Way]] = {
    "loop": _numpy_loop,
    "zip": _numpy_zip,
    "split": _numpy_split,
    "cat out=": _numpy_out,
    "copy": lambda d: _numpy_block(d).copy,
    "copy into": _numpy_into,
}


# ---- goflat ----


def bound(d: Features, dim: int = 0) -> Way:
    """Return the way that plans once."""
    return goflat.plan(d, dim=dim).bind(d)


def _flatten_out(d: Features) -> Way:
    outs = list(goflat.flatten(d))
    return lambda: goflat.flatten(d, out=outs)


_GOFLAT_MAKERS: dict[str, Callable[[Features], Way]] = {
    "goflat bound": bound,
    "goflat": lambda d: lambda: goflat.flatten(d),
    "goflat packed": lambda d: lambda: goflat.flatten(d, packed=True),
    "goflat out=": _flatten_out,
}
