"""How much of goflat the Dynamo of this torch can see through, and what it made of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo.utils import counters

if TYPE_CHECKING:
    from collections.abc import Callable


def takes_flat() -> bool:
    """Report whether a list with attributes, as a Flat is, leaves a graph whole: not so in 2.6."""
    return hasattr(torch._dynamo.variables, "UserDefinedListVariable")


class Compiled(NamedTuple):
    """A compiled function, and the operations of each graph that was captured for it so far."""

    call: Callable[..., Any]
    graphs: list[list[str]]

    def breaks(self) -> list[str]:
        """Return the reasons of all breaks in graphs so far."""
        return list(counters["graph_break"].elements())


def record(function: Callable[..., Any], **options: Any) -> Compiled:
    """Compile `function`, and forget all that was compiled before."""
    torch.compiler.reset()
    counters.clear()
    graphs: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([name(node) for node in module.graph.nodes if node.op.startswith("call")])
        return module.forward

    return Compiled(torch.compile(function, backend=backend, **options), graphs)


def name(node: torch.fx.Node) -> str:
    """Name the operation of a node: ``cat``."""
    return node.target if isinstance(node.target, str) else node.target.__name__
