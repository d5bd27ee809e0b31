"""Consuming calls on torch tensors: the native plan, and the steps that carry it out."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import torch

from . import _native, _ownership, _records, _tracing
from ._consume import Copy, Job, Stream, row_bytes, unfinished, wait_for
from ._errors import from_native, make, of_memory
from ._flat import make as make_flat
from ._layout import offsets, shape_of
from ._plan import Plan, may_adopt, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from ._containers import Containers
    from ._flat import Flat
    from ._layout import Layout
    from ._records import Records

_GRANULE = 512  # torch's CUDA allocator rounds every block up to a multiple of so many bytes
_SCRATCH = 32 << 20  # most bytes of scratch, where a job cannot do without
_NO_ADOPT, _STRIDES, _COLLECTED = 1, 2, 4  # flags of bridge/consumespec.go
_UINT = 1  # DLPack's code; what elements mean does not matter to moving them
_CPU, _CUDA = 1, 2
_SCRATCH_BASE = -2

_REFUSED = {  # got, want
    _ownership.LEAF: ("a leaf that requires grad", "a tensor that may be consumed"),
    _ownership.TWICE: ("a tensor that is an entry already", "each tensor once"),
}
_BEYOND = {_ownership.NOT_PLAIN, _ownership.MODE, _ownership.NOT_TORCH, _ownership.UNKNOWN}
_WHY = {
    _ownership.STRIDED: "its elements do not lie in row-major order",
    _ownership.FOREIGN: "its memory is not torch's own",
    _ownership.OVERLAP: "another entry shares memory with it",
    _ownership.HELD: "somebody else refers to it",
    _ownership.SAVED: "torch itself refers to it, as for backward",
    _ownership.SHARED: "a tensor that is no entry shares its storage",
    _ownership.STORAGE: "somebody refers to its storage",
}


def job_of(containers: Containers, layout: Layout) -> Job:
    """Return how to consume these tensors: in place where the extension can plan it."""
    table = containers.table
    if _native._core is None or _tracing.by_anyone():
        return Stream(containers, layout)
    if _capturing(layout):
        return Copy(containers, layout)
    records = _records.survey(table.grid, 1)
    if records is None:
        return Stream(containers, layout)
    _refuse(records, containers)
    if not all(_is_plannable(records, e) for e in range(len(records))):
        return Stream(containers, layout)
    return InPlace(containers, layout, records)


def _capturing(layout: Layout) -> bool:
    on_cuda = any(device.type == "cuda" for device in layout.devices)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def _refuse(records: Records, containers: Containers) -> None:
    """Raise for entries that may not be consumed whoever holds them."""
    for e in range(len(records)):
        if records.reason(e) in _REFUSED:
            raise make("OWNER", *containers.table.place(e), *_REFUSED[records.reason(e)])


def _is_plannable(records: Records, e: int) -> bool:
    """Report whether the extension can move the bytes of an entry without autograd or torch."""
    if records.flags(e) & _ownership.IS_GRAD and torch.is_grad_enabled():
        return False
    return records.reason(e) not in _BEYOND


class InPlace(Job):
    """A job of plain tensors: one native plan for each device."""

    def __init__(self, containers: Containers, layout: Layout, records: Records) -> None:
        super().__init__(containers, layout)
        self.records = records
        self.shapes = [_out_shape(containers, layout, b) for b in range(layout.batches)]
        for e, reason in containers.held.items():
            records.hold(e)
            self.reasons[e] = reason
        for e in range(len(records)):
            if records.reason(e) != _ownership.ADOPTABLE and records.nbytes(e):
                self.reasons.setdefault(e, _WHY[records.reason(e)])
        self._parts: list[_Part] = []
        try:
            for device in dict.fromkeys(layout.devices):
                self._parts.append(_Part(self, device))
        except BaseException:
            self.end()
            raise

    def plan(self) -> Plan:
        """Add up the plans of all devices."""
        parts = self._parts
        total = {
            name: sum(part.report[name] for part in parts)
            for name in ("growth", "tables", "reserved_growth", "moved_rows")
        }
        outs = [out for part in parts for out in part.report["outs"]]
        lines = tuple(line for part in parts for line in part.lines())
        return Plan(
            self.layout,
            _strategy([part.report["strategy"] for part in parts]),
            total["growth"],
            reserved_growth=total["reserved_growth"],
            tables=total["tables"],
            in_place=sum(not out["spilled"] for out in outs),
            moved_rows=total["moved_rows"],
            reasons=dict(self.reasons),
            lines=lines,
        )

    def name_holders(self, most: int) -> None:
        """Ask the garbage collector who holds entries."""
        grid = self.containers.table.grid
        for e in [e for e in self.reasons if e not in self.containers.held][:most]:
            known = (grid, *self.containers.own())
            self.reasons[e] = _ownership.why(grid[e], self.records.reason(e), known)

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Carry out the plans, device by device."""
        plan = self.plan()
        wait_for(self.layout, wait)
        outputs: list[Any] = [None] * self.layout.batches
        for part in self._parts:
            part.adopt(outputs)
        pending = [part.batches for part in self._parts]
        for part in self._parts:
            try:
                part.run(outputs)
            except BaseException as error:
                for later in pending:
                    _forget(outputs, later)
                raise unfinished(error, outputs, self.layout) from None
            pending.pop(0)
        flat: Flat[Any] = make_flat(outputs, self.layout)
        flat._plan = plan
        return flat

    def end(self) -> None:
        """Give up the native plans."""
        for part in self._parts:
            part.end()
        self._parts.clear()  # which refer back: nothing is to wait for the garbage collector


def _forget(outputs: list[Any], batches: Iterable[int]) -> None:
    for b in batches:
        outputs[b] = None


def _strategy(strategies: list[str]) -> str:
    return strategies[0] if len(set(strategies)) == 1 else "mixed"


class _Part:
    """The batches of one device."""

    def __init__(self, job: InPlace, device: torch.device) -> None:
        layout = job.layout
        self._job, self._device = job, device
        self.batches = [b for b, other in enumerate(layout.devices) if other == device]
        size = layout.batches
        self._entries = [k * size + b for k in range(len(layout.keys)) for b in self.batches]
        self._records = job.records.pick(self._entries)
        self._rooms = _rooms(device, self._records)
        self._handle = self._begin()
        self.report = json.loads(_core().bridge_InPlaceReport(self._handle))

    def _begin(self) -> int:
        spec = self._spec()
        try:
            pointers = spec.buffer_info()[0], self._records.pointer
            handle: int = _core().bridge_PlanInPlace(*pointers)
        except RuntimeError as error:
            raise from_native(str(error), self._job.layout.keys) from None
        return handle

    def _spec(self) -> array[int]:
        """Describe the job as bridge/consumespec.go reads it."""
        layout, grid = self._job.layout, self._job.containers.table.grid
        cuda = self._device.type == "cuda"
        records = self._records
        strided = any(records.flags(e) & _ownership.IS_STRIDED for e in range(len(records)))
        flags = (0 if may_adopt() else _NO_ADOPT) | (_STRIDES if strided else 0)
        flags |= _COLLECTED if self._rooms.everything else 0
        item = layout.dtype.itemsize
        rooms = self._rooms.pieces
        head = [
            *(len(layout.keys), len(self.batches), _UINT, 8 * item, 1),
            *(_CUDA if cuda else _CPU, self._device.index or 0),
            *(flags, _GRANULE if cuda and _is_native() else 1, _SCRATCH),
            *(len(layout.row_shape), len(rooms)),
        ]
        rows = [layout.rows[key][b] for key in layout.keys for b in self.batches]
        strides: list[int] = []
        if strided:
            for e in self._entries:
                entry = grid[e]
                legacy = entry.dim() != len(layout.row_shape) + 1
                plain = [0] * (len(layout.row_shape) + 1)
                strides += plain if legacy else [step * item for step in entry.stride()]
        pieces = [number for piece in rooms for number in piece]
        return array("q", [*head, *layout.row_shape, *rows, *strides, *pieces])

    # ---- what it costs ----

    def lines(self) -> list[str]:
        """Say which outputs are allocated, why, and when entries are given up."""
        lines, row = [], row_bytes(self._job.layout)
        cure = self._cure()
        for step in self.report["steps"]:
            if step["kind"] == "alloc" and self._rows(step["batch"]):
                b = self.batches[step["batch"]]
                bytes_ = self._rows(step["batch"]) * row
                lines.append(f"spill: batch {b}, {size(bytes_)}{cure}")
            elif step["kind"] == "scratch":
                lines.append(f"scratch: {size(self.report['scratch'])}")
            elif step["kind"] == "free" and step["entries"]:
                lines.append(f"then {len(step['entries'])} entries are given up")
        return lines

    def _rows(self, position: int) -> int:
        return offsets(self._job.layout, self.batches[position])[-1]

    def _cure(self) -> str:
        """Say why outputs do not fit, and what would help."""
        if not may_adopt():
            return ": GOFLAT_INPLACE=0 forbids writing over entries"
        if any(e in self._job.reasons for e in self._entries):
            return ": entries that are copied leave too little room"
        where = f"entries lie in {self.report['ranges']} "
        if self._device.type != "cuda":
            return f": {where}storages; an Arena, or entries that are parts of one tensor, need 0 B"
        return f": {where}segments; collect() predicts 0 B"

    # ---- carrying it out ----

    def adopt(self, outputs: list[Any]) -> None:
        """Make the outputs that lie in place; nothing is written yet."""
        layout, grid = self._job.layout, self._job.containers.table.grid
        for position, out in enumerate(self.report["outs"]):
            b = self.batches[position]
            rows = self._rows(position)
            if out["spilled"] or not rows or not row_bytes(layout):
                continue
            under = [grid[self._entries[e]] for e in out["under"]]
            length = rows * row_bytes(layout)
            like = grid[self._entries[position]]
            shape = shape_of(layout, rows)
            unclaim = self._rooms.claim(out["address"], out["address"] + length)
            outputs[b] = self._adopt(out["address"], shape, like, under, length, unclaim)

    def _adopt(
        self, address: int, shape: Any, like: Tensor, under: list[Any], length: int, unclaim: int
    ) -> Any:
        made: list[Any] = []
        span = address, address + length
        try:
            _core().bridge_Adopt(address, id(shape), id(like), id(under), *span, unclaim, id(made))
        except RuntimeError as error:
            raise _native._error(str(error), (), 0) from None
        return made[0]

    def run(self, outputs: list[Any]) -> None:
        """Do all steps. On an error the entries that are used up are gone from their containers."""
        scratch: Tensor | None = None
        self._rooms.retire()
        stream = self._stream()
        self._record(stream)
        for i, step in enumerate(self.report["steps"]):
            try:
                if step["kind"] == "alloc":
                    self._allocate(step["batch"], outputs)
                elif step["kind"] == "scratch":
                    scratch = torch.empty(
                        self.report["scratch"], dtype=torch.uint8, device=self._device
                    )
                    _core().bridge_SetBase(self._handle, _SCRATCH_BASE, scratch.data_ptr())
                elif step["kind"] == "move":
                    _core().bridge_RunStep(self._handle, i, stream)
                elif step["kind"] == "free":
                    self._job.containers.drop([self._entries[e] for e in step["entries"]])
                else:
                    scratch = None
            except BaseException as error:
                self._fail(i, outputs)
                raise self._error(error) from None

    def _stream(self) -> int:
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _record(self, stream: int) -> None:
        """Tell torch's allocator that the current stream works on memory made on another one."""
        if self._device.type != "cuda":
            return
        current = torch.cuda.current_stream(self._device)
        grid = self._job.containers.table.grid
        for e in self._entries:
            grid[e].record_stream(current)

    def _allocate(self, position: int, outputs: list[Any]) -> None:
        layout, b = self._job.layout, self.batches[position]
        out = torch.empty(self._job.shapes[b], dtype=layout.dtype, device=self._device)
        outputs[b] = out
        _core().bridge_SetBase(self._handle, position, out.data_ptr())

    def _fail(self, step: int, outputs: list[Any]) -> None:
        """Take out the entries that were written over, and outputs that lack bytes."""
        left = json.loads(_core().bridge_FailedStep(self._handle, step))
        self._job.containers.drop([self._entries[e] for e in left["entries"]])
        done = {self.batches[position] for position in left["outputs"]}
        _forget(outputs, [b for b in self.batches if b not in done])

    def _error(self, error: BaseException) -> BaseException:
        text = str(error)
        if type(error) is RuntimeError and text.count("|") >= 4:
            return from_native(text, self._job.layout.keys)
        return of_memory(error) or error

    def end(self) -> None:
        """Give up the native plan."""
        _core().bridge_EndInPlace(self._handle)


def _out_shape(containers: Containers, layout: Layout, b: int) -> tuple[int, ...]:
    """Return the shape of an output; a batch of nothing but (0,) entries has (0,) too."""
    rows = offsets(layout, b)[-1]
    if not rows and all(entry.shape == (0,) for entry in containers.table.column(b)):
        return (0,)
    return shape_of(layout, rows)


def _core() -> Any:
    """Return the extension, which jobs in place have."""
    return _native._core


class _NoRoom:
    """Free room where there is none: on the CPU."""

    pieces: tuple[tuple[int, int, int], ...] = ()
    everything = False

    def claim(self, lo: int, hi: int) -> int:
        """Need no claim."""
        return 0

    def retire(self) -> None:
        """Keep nothing from being allocated."""


def _rooms(device: torch.device, records: Records) -> Any:
    """Return the free room of the collected ranges that entries lie in."""
    if device.type != "cuda":
        return _NoRoom()
    from . import _collect

    return _collect.room(device, records)


def _is_native() -> bool:
    return torch.cuda.get_allocator_backend() == "native"
