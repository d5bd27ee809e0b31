"""One device's share of a consuming call: its native plan, and the steps that carry it out."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import torch

from . import _native, _ownership
from ._alone import Alone
from ._errors import from_native, of_memory
from ._layout import shape_of
from ._plan import may_adopt, row_bytes, size
from ._streams import under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from ._edges import Edges
    from ._inplace import InPlace
    from ._records import Records

_GRANULE = 512  # torch's CUDA allocator rounds every block up to a multiple of so many bytes
_SCRATCH = 32 << 20  # most bytes of scratch, where a job cannot do without
_NO_ADOPT, _STRIDES, _COLLECTED = 1, 2, 4  # flags of bridge/consumespec.go
_UINT = 1  # DLPack's code; what elements mean does not matter to moving them
_CPU, _CUDA = 1, 2
_SCRATCH_BASE = -2


class Part:
    """The batches of one device.

    Attributes
    ----------
    batches : list of int
        Their numbers in the job. The native plan counts them from 0: that is their position.
    report : dict
        What the native plan says, see bridge/consume.go.
    rooms : Room
        Free memory beside the entries.
    """

    def __init__(self, job: InPlace, device: torch.device) -> None:
        layout, batches = job.layout, job.layout.batches
        self._job, self._device = job, device
        self.batches = [b for b in range(batches) if layout.devices[b] == device]
        entries = (k * batches + b for k in range(len(layout.keys)) for b in self.batches)
        self._entries = list(entries) if len(self.batches) < batches else range(len(job.records))
        self._records = job.records.pick(self._entries)
        self._alone = Alone(job.containers.table.grid, self._entries, self._records)
        self.rooms = _rooms(device, self._records)
        self._handle = self._begin()
        try:
            self.report = json.loads(_core().bridge_InPlaceReport(self._handle))
            if device.type != "cuda":
                self.report["tables"] = 0  # which are bytes of a device
        except BaseException:
            self.end()
            raise

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
        layout = self._job.layout
        cuda = self._device.type == "cuda"
        strided = any(flags & _ownership.IS_STRIDED for _, flags in self._records.facts())
        flags = (0 if may_adopt() else _NO_ADOPT) | (_STRIDES if strided else 0)
        flags |= _COLLECTED if self.rooms.everything else 0
        pieces = self.rooms.pieces
        spec = array("q", (len(layout.keys), len(self.batches)))
        spec.extend((_UINT, 8 * layout.dtype.itemsize, 1))
        spec.extend((_CUDA if cuda else _CPU, self._device.index or 0, flags))
        spec.extend((_GRANULE if cuda and _is_native() else 1, _SCRATCH))
        spec.extend((len(layout.row_shape), len(pieces), *layout.row_shape))
        for rows in layout.rows.values():
            whole = len(self.batches) == len(rows)
            spec.extend(rows if whole else [rows[b] for b in self.batches])
        if strided:
            spec.extend(self._strides())
        for piece in pieces:
            spec.extend(piece)
        return spec

    def _strides(self) -> list[int]:
        """Return the strides of all entries in bytes; (0,) entries have none that matter."""
        grid, layout = self._job.containers.table.grid, self._job.layout
        item, ndim = layout.dtype.itemsize, len(layout.row_shape) + 1
        strides: list[int] = []
        for e in self._entries:
            steps = grid[e].stride()
            strides += [step * item for step in steps] if len(steps) == ndim else [0] * ndim
        return strides

    # ---- what it costs ----

    def lines(self) -> list[str]:
        """Say which outputs are allocated, why, and when entries are given up."""
        lines, row = [], row_bytes(self._job.layout)
        for step in self.report["steps"]:
            if step["kind"] == "alloc" and self._rows(step["batch"]):
                bytes_ = self._rows(step["batch"]) * row
                b = self.batches[step["batch"]]
                which = "the output" if self._job.containers.one_key else f"batch {b}"
                lines.append(f"spill: {which}, {size(bytes_)}{self._cure(b)}")
            elif step["kind"] == "scratch":
                lines.append(f"scratch: {size(self.report['scratch'])}")
            elif step["kind"] == "free" and step["entries"]:
                lines.append(f"then {len(step['entries'])} entries are given up")
        return lines

    def given_up(self) -> list[int]:
        """Return the entries that are given up during the steps, by their number in the job."""
        freed = [e for step in self.report["steps"] for e in step["entries"]]
        return [self._entries[e] for e in freed]

    def _rows(self, position: int) -> int:
        rows: int = self.report["outs"][position]["rows"]
        return rows

    def _cure(self, batch: int) -> str:
        """Say why the output of a batch does not fit, and what would help."""
        if not may_adopt():
            return ": GOFLAT_INPLACE=0 forbids writing over entries"
        batches = self._job.layout.batches
        if any(e % batches == batch for e in self._job.reasons):
            return ": entries that are copied leave too little room"
        where = f"entries lie in {self.report['ranges']} "
        if self._device.type != "cuda":
            return f": {where}storages; an Arena, or entries that are parts of one tensor, need 0 B"
        return f": {where}segments; collect() predicts 0 B"

    # ---- carrying it out ----

    def adopt(self, outputs: list[Any], edges: Edges) -> None:
        """Make the outputs that lie in place; nothing is written yet."""
        layout, grid = self._job.layout, self._job.containers.table.grid
        row = row_bytes(layout)
        for position, out in enumerate(self.report["outs"]):
            if out["spilled"] or not out["rows"] or not row:
                continue
            begin, end = out["address"], out["address"] + out["rows"] * row
            shape = shape_of(layout, out["rows"])
            like = grid[self._entries[position]]
            self._alone.made(out["under"])
            under = [grid[self._entries[e]] for e in out["under"]]
            claim = self.rooms.claim(begin, end)
            b = self.batches[position]
            outputs[b] = edges.record(_adopt(shape, like, under, (begin, end), claim), b)

    def run(self, outputs: list[Any], edges: Edges) -> None:
        """Do all steps. On an error the entries that are used up are gone from their containers."""
        stream = self._stream()
        scratch: Tensor | None = None
        shapes = [self._shape(position) for position in range(len(self.batches))]
        for i, step in enumerate(self.report["steps"]):
            kind = step["kind"]
            try:
                if kind == "move":
                    self._move(i, stream)
                elif kind == "free":
                    self._job.containers.drop([self._entries[e] for e in step["entries"]])
                    self._alone.dropped()
                elif kind == "alloc":
                    position = step["batch"]
                    b = self.batches[position]
                    outputs[b] = edges.record(self._allocate(shapes[position], position), b)
                elif kind == "scratch":
                    scratch = self._allocate((self.report["scratch"],), _SCRATCH_BASE)
                else:
                    scratch = None  # noqa: F841 # gives it back
            except BaseException as error:
                self._fail(i, outputs)
                raise self._error(error) from None
        try:
            self._look_at_what_stayed()
        except BaseException as error:
            self._fail(len(self.report["steps"]), outputs)
            raise self._error(error) from None

    def _move(self, step: int, stream: int) -> None:
        """Move the bytes of a step, if entries still lie where they lay and are nobody else's."""
        self._check(lambda alone: _core().bridge_RunStep(self._handle, step, stream, alone))

    def _look_at_what_stayed(self) -> None:
        """Raise if somebody got hold of an entry that became an output, or part of one, unmoved."""
        if not self._alone.is_sure and any(not out["spilled"] for out in self.report["outs"]):
            self._check(_core().bridge_Changed)

    def _check(self, look: Callable[[int], int]) -> None:
        """Raise if `look` finds that somebody got hold of an entry."""
        words = self._alone.words()
        try:
            changed = look(words.buffer_info()[0])
        finally:
            self._alone.done()
        if changed:
            raise self._job.grabbed(self._alone.entry(changed))

    def _stream(self) -> int:
        """Return the current stream; torch's allocator learns that it works on the entries."""
        if self._device.type != "cuda":
            return 0
        current = torch.cuda.current_stream(self._device)
        grid = self._job.containers.table.grid
        for e in self._records.storages():
            entry = grid[self._entries[e]]
            is_ours = self._records.flags(e) & _ownership.IS_ADOPTED
            for memory in under(entry) if is_ours else (entry,):
                memory.record_stream(current)
        return int(current.cuda_stream)

    def _allocate(self, shape: tuple[int, ...], base: int) -> Tensor:
        dtype = torch.uint8 if base == _SCRATCH_BASE else self._job.layout.dtype
        memory = torch.empty(shape, dtype=dtype, device=self._device)
        _core().bridge_SetBase(self._handle, base, memory.data_ptr())
        return memory

    def _shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an output; a batch of nothing but (0,) entries has (0,) too."""
        rows, b = self._rows(position), self.batches[position]
        if not rows:
            column = self._job.containers.table.column(b)
            if all(entry.shape == (0,) for entry in column):
                return (0,)
        return shape_of(self._job.layout, rows)

    def _fail(self, step: int, outputs: list[Any]) -> None:
        """Take out the entries that were written over, and outputs that lack bytes."""
        left = json.loads(_core().bridge_FailedStep(self._handle, step))
        self._job.containers.drop([self._entries[e] for e in left["entries"]])
        done = {self.batches[position] for position in left["outputs"]}
        forget(outputs, [b for b in self.batches if b not in done])

    def _error(self, error: BaseException) -> BaseException:
        text = str(error)
        if type(error) is RuntimeError and text.count("|") >= 4:
            return from_native(text, self._job.layout.keys)
        return of_memory(error) or error

    def end(self) -> None:
        """Give up the native plan."""
        _core().bridge_EndInPlace(self._handle)
        self.rooms.end()


def forget(outputs: list[Any], batches: Iterable[int]) -> None:
    """Leave no output of these batches."""
    for b in batches:
        outputs[b] = None


def _adopt(
    shape: tuple[int, ...], like: Tensor, under: list[Tensor], span: tuple[int, int], unclaim: int
) -> Tensor:
    """Make a tensor over memory of entries; see bridge/adopt.h."""
    made: list[Tensor] = []
    objects = id(shape), id(like), id(under)
    try:
        _core().bridge_Adopt(span[0], *objects, *span, unclaim, id(made))
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
    return made[0]


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

    def end(self) -> None:
        """Let go of nothing."""


def _rooms(device: torch.device, records: Records) -> Any:
    """Return the free room of the collected ranges that entries lie in."""
    if device.type != "cuda":
        return _NoRoom()
    from . import _collect

    return _collect.room(device, records)


def _is_native() -> bool:
    return torch.cuda.get_allocator_backend() == "native"
