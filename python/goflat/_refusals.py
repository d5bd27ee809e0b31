"""What may not be consumed, or not in place, and what the texts say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _ownership
from ._errors import make

if TYPE_CHECKING:
    from torch import Tensor

    from ._containers import Containers
    from ._errors import Error
    from ._records import Records

REFUSED = {_ownership.LEAF, _ownership.TWICE}
BEYOND = {  # reasons why the extension leaves a job to `flatten`, and what helps
    _ownership.NOT_PLAIN: "is more than a plain tensor; plain ones may be written over",
    _ownership.MODE: "is watched by a dispatch mode, torch.func or a tracer; call outside of it",
    _ownership.NOT_TORCH: "is no tensor; tensors may be written over",
    _ownership.UNKNOWN: "is used by nobody knows whom: this torch does not tell",
}
WHY = {
    _ownership.STRIDED: "its elements do not lie in row-major order",
    _ownership.FOREIGN: "its memory is not torch's own",
    _ownership.OVERLAP: "another entry shares memory with it",
    _ownership.HELD: "somebody else refers to it",
    _ownership.SAVED: "torch itself refers to it, as for backward",
    _ownership.SHARED: "a tensor that is no entry shares its storage",
    _ownership.STORAGE: "somebody refers to its storage",
}


def refuse(records: Records, containers: Containers) -> None:
    """Raise for the first entry that may not be consumed whoever holds it."""
    grid, known = containers.table.grid, dict[int, int]()
    for e in range(len(records)):
        first = known.setdefault(id(grid[e]), e)
        if first != e:
            raise _twice(containers, first, e)
        if records.reason(e) == _ownership.LEAF:
            raise _leaf(containers, e)


def refuse_unsurveyed(grid: list[Tensor], containers: Containers) -> None:
    """Raise as `refuse` does for what the survey does not judge: parameters, subclasses, all."""
    known: dict[int, int] = {}
    for e, entry in enumerate(grid):
        first = known.setdefault(id(entry), e)
        if first != e:
            raise _twice(containers, first, e)
        if entry.is_leaf and entry.requires_grad:
            raise _leaf(containers, e)


def _leaf(containers: Containers, e: int) -> Error:
    want = "a tensor that may be consumed: detached, or of no parameter"
    return make("OWNER", *containers.table.place(e), "a leaf that requires grad", want)


def _twice(containers: Containers, first: int, e: int) -> Error:
    got = f"the tensor that {containers.name(first)} is already"
    return make("OWNER", *containers.table.place(e), got, "each tensor once")


def unplannable(records: Records, containers: Containers) -> str:
    """Name the first entry that the extension cannot plan, and say why and what helps."""
    for e in range(len(records)):
        reason = records.reason(e)
        if reason in BEYOND:
            return f"{containers.name(e)} {BEYOND[reason]}"
    raise AssertionError("every entry can be planned")
