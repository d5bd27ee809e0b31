"""Where Dynamo breaks its graph at goflat. Imported while it captures one, never before."""

from __future__ import annotations

import pkgutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import trace_rules

from ._tracing import REASON

if TYPE_CHECKING:
    from collections.abc import Callable

# Whether Dynamo follows a list that has attributes, as a Flat is: not so in torch 2.6.
SEES_FLAT = hasattr(torch._dynamo.variables, "UserDefinedListVariable")

_FOLLOWED = {  # modules that flatten and cat lead Dynamo through, and those of their results
    *("_api", "_errors", "_features", "_flat", "_layout", "_outs", "_slots"),
    *("_traced", "_tracing"),
}


def goflat_breaks_the_graph(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function`; torch 2.6 names this one where it is to say why."""
    return function(*args, **kwargs)


def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        made = torch.compiler.disable(function, reason=REASON)  # type: ignore[no-untyped-call]
    except TypeError:  # torch 2.7 takes no reason yet
        made = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return made  # type: ignore[no-any-return]


def _skip_modules() -> None:
    """Have Dynamo leave all other modules alone.

    Else it would compile their functions whenever one is called from a function that it compiles,
    once for each shape of the entries.
    """
    package = __name__.rpartition(".")[0]
    path = __import__(package).__path__
    for module in pkgutil.iter_modules(path, f"{package}."):
        if module.name.rpartition(".")[2] not in _FOLLOWED:
            trace_rules.add(module.name)


run = _disabled(goflat_breaks_the_graph)
with suppress(AttributeError):  # a torch to come may have another way; then it only takes longer
    _skip_modules()
