"""Consuming calls on torch tensors: the native plans, and the steps that carry them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _native, _ownership, _records, _refusals, _tracing
from ._consume import Copy, Job, unfinished
from ._edges import Edges
from ._errors import make
from ._flat import make as make_flat
from ._part import Part, forget
from ._plan import Plan
from ._streams import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._containers import Containers
    from ._errors import Error
    from ._flat import Flat
    from ._layout import Layout
    from ._records import Records


def job_of(containers: Containers) -> Job | str:
    """Return how to consume these tensors in place; or why `flatten` has to be asked."""
    if _native._core is None:
        return f"goflat runs in pure Python: {_native.reason}"
    records = None if _tracing.by_anyone() else _survey(containers.table.grid)
    if records is None:
        return "a tracer, dispatch mode or torch.func watches; call outside of it"
    facts = records.facts()
    if any(reason in _refusals.REFUSED for reason, _ in facts):
        _refusals.refuse(records, containers)
    if any(reason in _refusals.BEYOND for reason, _ in facts):
        return _refusals.unplannable(records, containers)
    described = _native.layout(containers.plain(), containers.one_key)
    if described is None:
        return "entries have a form that only torch.cat joins"
    if _capturing(described.layout):
        return Copy(containers, described.layout, "a CUDA graph is captured; consume outside of it")
    return InPlace(containers, described.layout, records)


def _survey(grid: list[Any]) -> Records | None:
    """Ask who uses the entries, once lazy clones have memory of their own.

    They would get it as soon as they are read: where they were, others read and write then.
    """
    records = _records.survey(grid, 1)
    if records is None or not any(reason >= _ownership.FOREIGN for reason, _ in records.facts()):
        return records
    with torch._C.DisableTorchFunction():
        plain = range(_ownership.FOREIGN, _ownership.LEAF)
        odd = (e for e in range(len(records)) if records.reason(e) in plain)
        lazy = [e for e in odd if torch._C._is_cow_tensor(grid[e])]  # type: ignore[attr-defined]
        for e in lazy:
            grid[e].data_ptr()
    return _records.survey(grid, 1) if lazy else records


def _capturing(layout: Layout) -> bool:
    on_cuda = any(device.type == "cuda" for device in layout.devices)
    return on_cuda and torch.cuda.is_current_stream_capturing()


class InPlace(Job):
    """A job of plain tensors: one native plan for each device."""

    def __init__(self, containers: Containers, layout: Layout, records: Records) -> None:
        super().__init__(containers, layout)
        self.records = records
        for e, reason in containers.held.items():
            records.hold(e)
            self.reasons[e] = reason
        if containers.held:
            records.hold_neighbours(containers.held)
        for e in records.kept():
            self.reasons.setdefault(e, _refusals.WHY[records.reason(e)])
        self._parts: list[Part] = []
        try:
            for device in dict.fromkeys(layout.devices):
                self._parts.append(Part(self, device))
        except BaseException:
            self.end()
            raise

    def plan(self) -> Plan:
        """Add up the plans of all devices."""
        reports = [part.report for part in self._parts]
        numbers = ("growth", "tables", "reserved_growth", "moved_rows")
        total = {name: sum(report[name] for report in reports) for name in numbers}
        in_place = sum(not out["spilled"] for report in reports for out in report["outs"])
        return Plan(
            self.layout,
            _strategy([report["strategy"] for report in reports]),
            total["growth"],
            reserved_growth=total["reserved_growth"],
            tables=total["tables"],
            in_place=in_place,
            moved_rows=total["moved_rows"],
            reasons=dict(self.reasons),
            given_up=frozenset(e for part in self._parts for e in part.given_up()),
            lines=tuple(line for part in self._parts for line in part.lines()),
            one_key=self.containers.one_key,
        )

    def name_holders(self, most: int) -> None:
        """Ask the garbage collector who holds entries."""
        grid = self.containers.table.grid
        unnamed = [e for e in self.reasons if e not in self.containers.held]
        # First those that are held themselves: others are kept because they share with them.
        unnamed.sort(key=lambda e: self.records.reason(e) != _ownership.HELD)
        for e in unnamed[:most]:
            known = (grid, *self.containers.own())
            self.reasons[e] = _ownership.why(grid[e], self.records.reason(e), known)

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Carry out the plans, device by device."""
        plan = self.plan()
        wait_for(self.layout, wait)
        if plan.in_place:
            self._look_again()
        outputs: list[Any] = [None] * self.layout.batches
        try:
            edges = Edges(self.containers.table.grid, self.layout, self.records)
            for part in self._parts:
                part.adopt(outputs, edges)
        except BaseException as error:
            raise unfinished(error, [], self.layout) from None
        for part in self._parts:
            part.rooms.retire()
        for position, part in enumerate(self._parts):
            try:
                part.run(outputs, edges)
            except BaseException as error:
                for later in self._parts[position + 1 :]:
                    forget(outputs, later.batches)
                raise unfinished(error, outputs, self.layout) from None
        flat: Flat[Any] = make_flat(outputs, self.layout)
        flat._plan = plan
        return flat

    def _look_again(self) -> None:
        """Raise if anybody got hold of an entry since the plan was made: a hook, or a thread."""
        now = _records.survey(self.containers.table.grid, 0)
        changed = 0 if now is None else self.records.changed(now)
        if changed is not None:
            raise self.grabbed(changed)

    def grabbed(self, e: int) -> Error:
        """Return the error for an entry that somebody got hold of."""
        got, want = "a tensor that somebody got hold of during the call", "it left alone"
        return make("OWNER", *self.containers.table.place(e), got, want)

    def end(self) -> None:
        """Give up the native plans."""
        for part in self._parts:
            part.end()
        self._parts.clear()  # which refer back: nothing is to wait for the garbage collector


def _strategy(strategies: list[str]) -> str:
    return strategies[0] if len(set(strategies)) == 1 else "mixed"
