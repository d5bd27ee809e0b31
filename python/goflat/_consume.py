"""Consuming calls: `flatten_` and `cat_` turn entries into outputs within the entries' memory.

    containers ──► survey: who else uses an entry? ──► plan, one per device ──► outputs are made
    over the entries' memory ──► steps: allocate what does not fit, move, give entries up ──►
    containers emptied

Everything before the steps leaves all as it was. What the extension cannot plan (other frameworks
than torch, subclasses, autograd, a forked child) is streamed: one output after the other by
`flatten`, its entries given up after it.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _tracing, _verify, _warning
from ._containers import Containers
from ._errors import Error, GrowthWarning, of_cat, of_memory
from ._features import read, read_tensors
from ._flat import make as make_flat
from ._kinds import arrays_of, kind_of, refuse
from ._layout import describe, offsets
from ._plan import Plan, check_limit, copy_plan, reserved_bound, row_bytes, size, whole
from ._streams import streams_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._flat import Flat
    from ._layout import Layout


A = TypeVar("A")


# Most holders that are named: each takes a look at all objects of the process.
_NAMED = 16  # by `plan`
_TOLD = 3  # by errors and warnings


@overload
def flatten_(
    features: Mapping[Any, Sequence[A]], *, max_growth: int | None = ..., wait: Sequence[Any] = ...
) -> Flat[A]: ...
@overload
def flatten_(
    features: Sequence[Mapping[Any, A]], *, max_growth: int | None = ..., wait: Sequence[Any] = ...
) -> Flat[A]: ...
@_tracing.breaks_graph
def flatten_(
    features: Any, *, max_growth: int | None = None, wait: Sequence[Any] = ()
) -> Flat[Any]:
    """Join all keys' rows of each batch within the entries' own memory, and empty `features`.

    The result is that of `flatten`, without a second copy of the data: outputs are laid into the
    memory of the entries, which are consumed.

    Parameters
    ----------
    features : dict[key, list of array] or list[dict[key, array]]
        As for `flatten`; emptied. Entries that somebody else still refers to, or that lie in a
        tuple or a read-only mapping, are copied and stay as they are.
    max_growth : int, optional
        Most bytes that the allocator may rise above its level at the call. 0 asks for a call that
        takes no memory at all.
    wait : Sequence[torch.cuda.Stream or object with ``__cuda_stream__``], optional
        Streams that may still read entries; the current stream waits for them.

    Returns
    -------
    Flat
        One array per batch, in memory of its own; ``.plan`` says what it cost.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        As `flatten` does.
    OwnershipError
        If an entry is a leaf that requires grad, or given twice.
    MemoryLimitError
        If the call needs more than `max_growth`. As with the errors above, nothing has moved.
    OutOfMemoryError
        If there is no memory for an output that had to be allocated. ``outputs`` of the error are
        the outputs that are done, by batch; entries that are used up are None in `features`, the
        others where they were. The same holds for a DeviceError of a launch that failed.

    Warns
    -----
    GrowthWarning
        If memory grows and `max_growth` was not given.

    Notes
    -----
    No stream but the current one and those of `wait` may still work on entries. Whoever holds
    another reference to an entry, a view of it, its storage or its list will find it unchanged.
    Lazy clones (copy on write) get memory of their own first, which no plan counts.
    ``GOFLAT_INPLACE=0`` in the environment forbids writing over entries, ``GOFLAT_VERIFY=1``
    compares each result with `torch.cat` and checks that nothing held has changed.

    While a CUDA graph is captured, and where torch.jit.trace or torch.export without Dynamo
    watches, outputs are new. Under torch.compile this is a break in the graph: docs/compile.md.

    Examples
    --------
    >>> import torch, goflat
    >>> whole = torch.arange(6.0).reshape(3, 2)
    >>> features = {"p2": [whole[:1]], "p3": [whole[1:]]}
    >>> del whole
    >>> flat = goflat.flatten_(features, max_growth=0)
    >>> flat[0].tolist(), features
    ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], {})
    """
    if _tracing.by_dynamo():
        call = _tracing.outside(flatten_, features, max_growth=max_growth, wait=wait)
        return call  # type: ignore[no-any-return]
    if _tracing.by_anyone():
        return _traced(features, False)
    return _consume(Containers(features), max_growth, wait)


@_tracing.breaks_graph
def cat_(tensors: Sequence[A], *, max_growth: int | None = None, wait: Sequence[Any] = ()) -> A:
    """Join arrays along dim 0 within their own memory, and empty `tensors`.

    `torch.cat` for lists that are not needed afterwards, such as the results of a loop.

    Parameters
    ----------
    tensors : list of array
        At least one array of shape ``(rows, *row_shape)``; emptied. See `flatten_`.
    max_growth, wait
        As for `flatten_`.

    Returns
    -------
    array
        Shape ``(sum of rows, *row_shape)``.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, OwnershipError, MemoryLimitError, OutOfMemoryError
        As `flatten_` does; ``batch`` of the error is the position in `tensors`.

    Warns
    -----
    GrowthWarning
        If memory grows and `max_growth` was not given.

    Examples
    --------
    >>> import torch, goflat
    >>> whole = torch.arange(4.0)
    >>> parts = list(whole.split([1, 3]))
    >>> del whole
    >>> goflat.cat_(parts, max_growth=0), parts
    (tensor([0., 1., 2., 3.]), [])
    """
    if _tracing.by_dynamo():
        call = _tracing.outside(cat_, tensors, max_growth=max_growth, wait=wait)
        return call  # type: ignore[no-any-return]
    if _tracing.by_anyone():
        return _traced(tensors, True)[0]  # type: ignore[no-any-return]
    try:
        return _consume(Containers(tensors, one_key=True), max_growth, wait)[0]  # type: ignore[no-any-return]
    except Error as error:
        raise of_cat(error) from None


def _traced(features: Any, one_key: bool) -> Flat[Any]:
    """Join in plain operations for a compiler or tracer, which decides where results lie."""
    table = read_tensors(features) if one_key else read(features)
    flat = _tracing.flatten(table, 0, None, None, False)
    if hasattr(features, "clear"):
        features.clear()
    return flat


def plan_of(features: Any) -> Plan:
    """Return the plan of `flatten_` for `features`, which stay as they are."""
    containers = Containers(features)
    job = _job(containers)
    try:
        job.name_holders(_NAMED)
        return job.plan()
    finally:
        job.end()
        containers.forget()


def _consume(containers: Containers, max_growth: int | None, wait: Sequence[Any]) -> Flat[Any]:
    try:
        return _run(containers, whole(max_growth), streams_of(wait))
    except BaseException as error:
        containers.give_back()
        # Frames of the traceback refer to entries, which a second try would find held.
        containers.forget()
        if isinstance(error, Error):
            raise error.with_traceback(None) from None
        raise


def _run(containers: Containers, max_growth: int | None, wait: Sequence[Any]) -> Flat[Any]:
    job = _job(containers)
    try:
        _agree(job, max_growth)
        check = _verify.before(containers, job.reasons) if _verify.wanted() else None
        containers.take()
        flat = job.run(wait)
    finally:
        job.end()
    containers.clear()
    if check is not None:
        check(flat)
    return flat


def _agree(job: Job, max_growth: int | None) -> None:
    """Stop, or warn, before anything moves."""
    plan = job.plan()
    if max_growth is None:
        if plan.growth:
            text = _growing(job)
            if _warning.in_full(text, GrowthWarning, 5):
                job.name_holders(_TOLD)
                text = _growing(job)
            warnings.warn(text, GrowthWarning, stacklevel=5)
        return
    if plan.growth > max_growth:  # type: ignore[operator]
        job.name_holders(_TOLD)
        check_limit(job.plan(), max_growth)


def _growing(job: Job) -> str:
    plan = job.plan()
    name = "cat_" if job.containers.one_key else "flatten_"
    return f"{name} grows by {size(plan.growth)}; say max_growth= to allow it\n{plan}"  # type: ignore[arg-type]


def _job(containers: Containers) -> Job:
    table = containers.table
    if not table.grid:
        return Nothing(containers, describe(table, 0))
    kind = kind_of(type(table.grid[0]))
    is_torch = kind == "torch"
    why = _JAX if kind == "jax" else _ARRAYS
    if is_torch:
        from . import _inplace, _refusals

        job = _inplace.job_of(containers)
        if isinstance(job, Job):
            return job
        why = job
    arrays = arrays_of(table)
    grid = arrays.load(table.grid, table.place)
    refuse(arrays, grid, table.place)
    if is_torch:
        _refusals.refuse_unsurveyed(grid, containers)
    layout = describe(table._replace(grid=grid), 0)
    del grid  # which may refer to entries
    return Stream(containers, layout, why)


_ARRAYS = "only torch tells who uses the memory of an array; pass tensors, or write to an Arena"
_JAX = "arrays of JAX never change, so nothing is written over"


class Job:
    """How one call goes: what it will cost, and running it."""

    def __init__(self, containers: Containers, layout: Layout) -> None:
        self.containers = containers
        self.layout = layout
        self.reasons: dict[int, str] = {}

    def plan(self) -> Plan:
        """Say what `run` will cost."""
        raise NotImplementedError

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Make the outputs; entries that are used up are taken out of their containers."""
        raise NotImplementedError

    def name_holders(self, most: int) -> None:
        """Find out who holds up to so many of the entries that are copied."""

    def end(self) -> None:
        """Forget the job."""


class Nothing(Job):
    """A job without entries."""

    def plan(self) -> Plan:
        """Plan nothing, which costs nothing."""
        return Plan(self.layout, "inplace", 0, reserved_growth=0)

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Return no outputs."""
        flat: Flat[Any] = make_flat([], self.layout)
        flat._plan = self.plan()
        return flat


class Stream(Job):
    """One output after the other by `flatten`; the entries of each are given up after it."""

    strategy = "stream"

    def __init__(self, containers: Containers, layout: Layout, why: str) -> None:
        super().__init__(containers, layout)
        self._lines = (f"{self.strategy}: {why}",)
        held = _held(containers.table.grid, containers.held)
        self.reasons = {e: containers.held.get(e, "somebody else refers to it") for e in held}

    def plan(self) -> Plan:
        """Entries are given back after the output that they are in."""
        layout, row = self.layout, row_bytes(self.layout)
        outputs = [offsets(layout, b)[-1] * row for b in range(layout.batches)]
        level = growth = 0
        for b, output in enumerate(outputs):
            level += output
            growth = max(growth, level)
            level -= sum(self._given_back(b)) * row
        return Plan(
            layout,
            self.strategy,
            growth,
            reserved_growth=reserved_bound(outputs),
            reasons=self.reasons,
            lines=self._lines,
            one_key=self.containers.one_key,
        )

    def _given_back(self, b: int) -> list[int]:
        """Return the rows of the entries of a batch that nobody else refers to."""
        size = self.layout.batches
        columns = enumerate(self.layout.rows.values())
        return [rows[b] for k, rows in columns if k * size + b not in self.reasons]

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Flatten batch by batch."""
        from . import _api

        wait_for(self.layout, wait)
        outputs: list[Any] = []
        table = self.containers.table
        for b in range(self.layout.batches):
            column = table._replace(batches=1, grid=table.column(b))
            try:
                outputs += _api._engine(column, None, 0, False)
            except Exception as error:
                raise unfinished(error, outputs, self.layout) from None
            del column
            self.containers.drop(range(b, len(table.grid), self.layout.batches))
        flat: Flat[Any] = make_flat(outputs, self.layout)
        flat._plan = self.plan()
        return flat


class Copy(Stream):
    """All outputs at once by `flatten`, as while a CUDA graph is captured."""

    strategy = "copy"

    def plan(self) -> Plan:
        """Plan new outputs; entries are given up after all of them."""
        return copy_plan(self.layout, lines=self._lines)

    def run(self, wait: Sequence[Any]) -> Flat[Any]:
        """Flatten all batches."""
        from . import _api

        wait_for(self.layout, wait)
        flat = _api._engine(self.containers.table, None, 0, False)
        flat._plan = self.plan()
        return flat


def _held(grid: list[Any], held: Mapping[int, str]) -> list[int]:
    """Return the entries that somebody besides `grid` and its container refers to."""
    alone = references([object()])[0] + 1
    return [e for e, count in enumerate(references(grid)) if count > alone or e in held]


def references(grid: list[Any]) -> list[int]:
    """Return how many references there are to each of `grid`, seen from here."""
    return [sys.getrefcount(entry) for entry in grid]


def unfinished(error: BaseException, outputs: list[Any], layout: Layout) -> BaseException:
    """Return the error of a call that failed half way: it has the outputs that are done."""
    ours = of_memory(error) or error
    done: list[Any] = [*outputs, *[None] * (layout.batches - len(outputs))]
    ours.outputs = done  # type: ignore[attr-defined]
    return ours
