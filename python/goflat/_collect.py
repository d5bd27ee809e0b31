"""collect(): what torch allocates inside lies in one address range, so that joining grows by 0 B.

A context is a pool of torch's over a range of gpu/collect.h. When it is left, torch may empty the
pool, and does so on `torch.cuda.empty_cache` and before it raises out of memory, as with its own
cache. The next context empties the pools of those before it, and takes over their range if nothing
lives there any more. How, and why not more simply: docs/adr/0011-collect.md.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager, ContextDecorator
from threading import get_ident
from typing import TYPE_CHECKING, Any

from . import _native, _pools, _tracing
from ._errors import DeviceError, of_memory
from ._room import Room

if TYPE_CHECKING:
    from types import TracebackType

room = Room

_threads = threading.local()  # .contexts: those that this thread is in


@_tracing.breaks_graph
def collect(device: Any = None) -> AbstractContextManager[None]:
    """Let tensors that are made inside lie in one address range, whatever lies between them.

    `flatten_` and `cat_` join such tensors within the memory they have: growth is 0 B for any
    shapes. Producers need no change, and temporaries do no harm.

    Parameters
    ----------
    device : torch.device, int, str or None
        CUDA device whose memory is collected; None for the current one. For ``"cpu"``, and for
        None where torch sees no GPU, the context does nothing.

    Raises
    ------
    DeviceError
        There is no such device, it cannot be used, or this torch or its allocator has no pools.

    Notes
    -----
    Only this thread's allocations are collected, not those that autograd's threads make during
    ``backward()``. Tensors stay valid after the context, as long as anything refers to them.
    Contexts may be nested; the innermost one collects. While a graph is being captured the context
    does nothing: memory then belongs to the graph.

    Memory is mapped ahead, up to 96 MiB at a time, and behind what is made inside there is free
    memory, so that joining moves few bytes twice: half as much as that, at least 4 and at most
    64 MiB, of large jobs an eighth, at most 512 MiB. `goflat.memory` counts it, torch does not. All
    is kept for the next context, and goes back to the driver on ``torch.cuda.empty_cache()`` and
    before torch reports that it is out of memory. While a context is open, torch before 2.14 does
    not give back what it caches elsewhere on the device. Where memory was short lately, and the
    first time, the context does so as it opens.

    As under ``expandable_segments``, tensors made inside cannot be sent to other processes by CUDA
    IPC. Before torch 2.14 a ``torch.cuda.MemPool`` of yours must outlive every open context on its
    device, or torch ends the process.

    Examples
    --------
    >>> import goflat
    >>> import numpy as np
    >>> with goflat.collect():  # without a GPU it does nothing
    ...     features = {"0": [np.ones((2, 4))], "1": [np.zeros((3, 4))]}
    >>> goflat.flatten(features)[0].shape
    (5, 4)
    """
    if _tracing.by_dynamo():
        return _tracing.outside(collect, device)  # type: ignore[no-any-return]
    return _Collecting(device)


class _Collecting(ContextDecorator, AbstractContextManager[None]):
    """What `collect` returns: the contexts it has opened, on a device that is found at each entry.

    No generator: entry and exit run between producers, when little of their code is in a cache.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._open: list[Context | None] = []

    @_tracing.breaks_graph
    def __enter__(self) -> None:
        if _tracing.by_dynamo():
            _tracing.outside(_Collecting.__enter__, self)
            return
        device = self._device
        if device is None and _checked and _native._core is not None:
            ordinal: int | None = _pools.calls.current()
        else:
            ordinal = _ordinal(device)
        if ordinal is None or _pools.calls.capturing():
            self._open.append(None)
        else:
            self._open.append(Context(ordinal))

    @_tracing.breaks_graph
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _tracing.by_dynamo():
            _tracing.outside(_Collecting.__exit__, self, kind, error, traceback)
            return
        context = self._open.pop()
        if context is None:
            return
        if error is not None and of_memory(error) is not None:
            _pools.ran_out(context.device)
        context.leave()

    def _recreate_cm(self) -> _Collecting:
        """Let each call of a decorated function have contexts of its own."""
        return _Collecting(self._device)


def use(address: int, stream: int) -> None:
    """Say that a stream uses an output at `address`, which need not be collected."""
    if _native._core is not None:
        _native._core.bridge_CollectUse(address, stream)


# ---- where ----

_checked = False  # whether this torch has pools; then it has been imported and CUDA started
_ordinals: dict[Any, int] = {}  # of devices that name one


def _ordinal(device: Any) -> int | None:
    """Return the CUDA device to collect on; None where there is none."""
    if _native._core is None:
        return None
    ordinal = _ordinals.get(device) if isinstance(device, (int, str)) else None
    return _find(device) if ordinal is None else ordinal


def _find(device: Any) -> int | None:
    torch = _torch()
    if torch is None or str(device).split(":")[0] in ("cpu", "meta"):
        return None
    if device is None and not torch.cuda.is_available():
        return None
    try:
        ordinal = _number(torch, device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        message = f"got device {device!r}, want a CUDA device that can be used: {error}"
        raise DeviceError(message) from error
    _check_torch(torch)
    return ordinal


def _torch() -> Any:
    if "torch" not in sys.modules:
        try:
            import torch  # noqa: F401  # what is made inside may be torch's
        except ImportError:
            return None
    return sys.modules["torch"]


def _number(torch: Any, device: Any) -> int:
    wanted = torch.device("cuda", device) if isinstance(device, int) else device
    wanted = torch.device("cuda" if wanted is None else wanted)
    if wanted.type != "cuda":
        raise ValueError("only memory of CUDA devices is collected")
    current: int = torch.cuda.current_device()  # starts CUDA
    ordinal: int = current if wanted.index is None else wanted.index
    if not 0 <= ordinal < torch.cuda.device_count():
        raise ValueError(f"torch sees {torch.cuda.device_count()}")
    if isinstance(device, (int, str)) and wanted.index is not None:
        _ordinals[device] = ordinal
    return ordinal


def _check_torch(torch: Any) -> None:
    """Refuse a torch without pools, once."""
    global _checked
    if _checked:
        return
    import inspect  # as slow to import as goflat itself

    cure = "use an Arena, or PYTORCH_ALLOC_CONF=expandable_segments:True"
    missing = [name for name in _pools.NEEDED if not hasattr(torch._C, name)]
    parameters = inspect.signature(torch.cuda.memory_snapshot).parameters
    if missing or not hasattr(torch.cuda, "MemPool") or "include_traces" not in parameters:
        raise DeviceError(f"got torch {torch.__version__}, want 2.11 or later: {cure}")
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise DeviceError(f"got torch's allocator {backend!r}, want its own, which has pools")
    _pools.prepare()
    _checked = True


# ---- contexts ----


def contexts() -> list[Context]:
    """Return the contexts that this thread is in, outermost first."""
    try:
        found: list[Context] = _threads.contexts
    except AttributeError:
        found = _threads.contexts = []
    return found


class Context:
    """An open context: a pool, and the range that its memory comes from."""

    __slots__ = ("_around", "_pool", "device", "range", "thread")

    def __init__(self, device: int) -> None:
        self.device = device
        self.thread = get_ident()
        self.range = 0
        self._pool: _pools.Id | None = None
        self._around = contexts()
        with _pools.lock:
            self._open()
            self._around.append(self)

    def leave(self) -> None:
        """End it. What was made inside stays."""
        if sys.is_finalizing() or _native._core is None:  # torch is gone, or this is a fork's child
            return
        with _pools.lock:
            self._around.remove(self)
            try:
                self._close()
            finally:
                self._go_on()

    def renew(self) -> None:
        """Go on in another range: nothing will be allocated in this one any more.

        The caller holds the lock. A context that is not the innermost goes on when it is.
        """
        self._close()
        _native._core.bridge_CollectEnd(self.range)  # type: ignore[union-attr]
        if self._innermost() is self:
            self._open()

    def _go_on(self) -> None:
        """Close the range, and return to the context around this one."""
        outer = self._innermost() if self._around else None
        if outer is not None and outer._pool is None:
            _pools.calls.go_on(self.device, self.range, 0)
            outer._open()
        elif _pools.calls.go_on(self.device, self.range, outer.range if outer else 0):
            _pools.watch(self.device)

    def _innermost(self) -> Context | None:
        return next((c for c in reversed(self._around) if c.device == self.device), None)

    def _open(self) -> None:
        self._pool, self.range = _pools.enter(self.device)
        _pools.of_range[self.range] = self._pool
        _pools.owners[self.range] = self

    def _close(self) -> None:
        """End the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            del _pools.owners[self.range]
            _pools.end(self.device, pool)
