"""Whether a compiler or tracer watches: it has to be shown plain torch operations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _look() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


# Whether Dynamo runs this very code. goflat._torch replaces it, once torch is met, by torch's own
# function, which takes 35 ns instead of 150.
by_dynamo: Callable[[], bool] = _look


def by_anyone() -> bool:
    """Report whether torch.compile, torch.export or torch.jit.trace watches."""
    torch = sys.modules.get("torch")
    return torch is not None and (torch.compiler.is_compiling() or torch.jit.is_tracing())
