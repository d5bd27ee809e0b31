"""Whether a compiler or tracer watches: it has to be shown plain torch operations.

Imports no torch, nor Dynamo: `goflat._traced` and `goflat._breaks` do.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._features import Features
    from ._flat import Flat

F = TypeVar("F", bound="Callable[..., Any]")


def _look() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


# Whether Dynamo runs this very code. goflat._torch replaces it, once torch is met, by torch's own
# function, which takes 35 ns instead of 150.
by_dynamo: Callable[[], bool] = _look


def by_anyone() -> bool:
    """Report whether torch.compile, torch.export or torch.jit.trace watches."""
    torch = sys.modules.get("torch")
    return torch is not None and (torch.compiler.is_compiling() or torch.jit.is_tracing())


def watches(table: Features) -> bool:
    """Report whether a tracer is to be shown this job, for which it has to be one of tensors."""
    if not by_anyone():
        return False
    from ._traced import takes

    return takes(table)


def flatten(table: Features, dim: Any, out: Any, dtype: Any, packed: bool) -> Flat[Any]:
    """Do a job in the plain operations that a tracer is shown."""
    from . import _traced

    return _traced.flatten(table, dim, out, dtype, packed)


REASON = (
    "goflat: of its calls only flatten and cat can be part of a graph; others read addresses and "
    "reference counts, or make memory that outlives the call. See docs/compile.md"
)


def breaks_graph(function: F) -> F:
    """Tell Dynamo, as `torch.compiler.disable` would, to call `function` between two graphs.

    In its body it has to ask `by_dynamo`, and then to leave things to `outside`: calls from the
    interpreter reach Dynamo too. Unlike torch's decorator this one needs no torch, and no time.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=REASON)
    return function


def outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` where Dynamo does not look, nor at what it calls.

    Only to be asked while `by_dynamo`: the call that it leads to is not.
    """
    from ._breaks import run

    return run(function, *args, **kwargs)
