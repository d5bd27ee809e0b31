"""Other ways to do a job that need more than torch.cat: a compiler, a package, a CUDA graph.

A function here returns the way, or why there is none.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Features = dict[str, list[Any]]
    Way = Callable[[], Any]


def compiled(function: Callable[[Features], Any], d: Features, most: int) -> Way | str:
    """Compile `function` for the shapes of `d`, which takes seconds that are on nobody's clock.

    Its outputs are its own at each call; other shapes would be compiled anew.
    """
    import torch

    if sum(map(len, d.values())) > most:
        return f"more than {most} entries"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about itself
            torch._dynamo.reset()
            run = torch.compile(function, dynamic=False, fullgraph=True)
            run(d)
    except Exception as why:  # what is raised without a compiler differs between versions
        lines = str(why).strip().splitlines()
        return f"{type(why).__name__}: {lines[0] if lines else ''}"
    return lambda: run(d)


def tensordicts(d: Features) -> Way | str:
    """Return one torch.cat over a TensorDict for each key, whose leaves are the batches."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tensordict import TensorDict
    except ImportError as why:
        return str(why)
    if any(len(set(map(len, of_key))) > 1 for of_key in d.values()):
        return "a TensorDict has one number of rows for all its entries"
    dicts = [
        TensorDict({str(b): entry for b, entry in enumerate(of_key)}, batch_size=[len(of_key[0])])
        for of_key in d.values()
    ]
    return lambda: list(torch.cat(dicts).values())


def as_arrays(d: Features) -> Way | str:
    """Return NumPy's concatenation of the same memory; the arrays are made before."""
    import numpy as np
    import torch

    if next(iter(d.values()))[0].is_cuda:
        return "NumPy has no arrays on a GPU"
    columns = [[entry.numpy() for entry in column] for column in zip(*d.values(), strict=True)]
    return lambda: [torch.from_numpy(np.concatenate(column)) for column in columns]


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
