"""``GOFLAT_VERIFY=1``: check every consuming call against `torch.cat`, at twice the memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._containers import Containers
    from ._flat import Flat


def wanted() -> bool:
    """Report whether the environment asks for it."""
    return os.environ.get("GOFLAT_VERIFY", "0") not in ("", "0")


def before(containers: Containers, held: dict[int, str]) -> Callable[[Flat[Any]], None]:
    """Remember what the call must give and what it must not change; return the check for after.

    `held` are the entries that somebody else refers to.
    """
    from ._api import flatten

    table = containers.table
    entries: Any = table._replace(grid=list(table.grid))
    want: list[Any] = flatten(entries)
    names = {e: containers.name(e) for e in held}
    kept = {e: (table.grid[e], _copy(table.grid[e])) for e in held}

    def check(flat: Flat[Any]) -> None:
        for b, (got, expected) in enumerate(zip(flat, want, strict=True)):
            if not _same(got, expected):
                raise Error(f"GOFLAT_VERIFY: output {b} is not what torch.cat gives", batch=b)
        for e, (entry, copy) in kept.items():
            if not _same(entry, copy):
                key, batch = table.place(e)
                text = f"GOFLAT_VERIFY: {names[e]}, which is held, has changed"
                raise Error(text, key=key, batch=batch)

    return check


def _copy(array: Any) -> Any:
    return array.detach().clone() if hasattr(array, "detach") else array.copy()


def _same(got: Any, want: Any) -> bool:
    """Compare shape, dtype and bytes."""
    if tuple(got.shape) != tuple(want.shape) or got.dtype != want.dtype:
        return False
    return bool((_bytes(got) == _bytes(want)).all())


def _bytes(array: Any) -> Any:
    if hasattr(array, "detach"):
        import torch

        flat = array.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return flat.view(torch.uint8)
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
