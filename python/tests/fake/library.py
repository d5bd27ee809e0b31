"""The array library of array.c as tests use it: types, memory, and the fake driver's own calls.

Imported in child processes only, see `fake.child`.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any, ClassVar

import fakearray
import numpy as np
from fakearray import Array

import goflat
from goflat import _native

CPU, CUDA0, CUDA1 = (1, 0), (2, 0), (2, 1)
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # NumPy's letters, DLPack's codes


# ---- the driver ----


def _open() -> Any:
    """Return the fake driver, None where there is another one or none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.fakecuda_alloc.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return None
    library.fakecuda_alloc.argtypes = (ctypes.c_int, ctypes.c_size_t)
    library.fakecuda_free.argtypes = (ctypes.c_void_p,)
    library.fakecuda_forbid.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.fakecuda_fail.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
    library.fakecuda_call.restype = ctypes.c_char_p
    library.fakecuda_live.restype = library.fakecuda_damaged.restype = ctypes.c_longlong
    address = {name: ctypes.cast(library[name], ctypes.c_void_p).value for name in _MEMORY}
    fakearray.set_driver(*address.values())
    return library


_MEMORY = ("fakecuda_alloc", "fakecuda_free")
driver = _open()


def log() -> list[str]:
    """Return the driver calls since the last `reset`, launches with device, grid and stream."""
    return [driver.fakecuda_call(i).decode() for i in range(driver.fakecuda_calls())]


def launches() -> list[tuple[int, int]]:
    """Return (device, stream) of the kernels launched since the last `reset`."""
    found = [line.split() for line in log() if line.startswith("cuLaunchKernel ")]
    return [(int(words[3]), int(words[-1].replace("(nil)", "0"), 16)) for words in found]


def reset() -> None:
    """Forget failures, the log, and errors that contexts are stuck with."""
    driver.fakecuda_reset()


def fail(function: str, nth: int, code: int) -> None:
    """Let the nth driver call of that name from now on return `code`; ``"*"`` is any."""
    driver.fakecuda_fail(function.encode(), nth, code)


def current() -> int:
    """Return the device whose context is current on this thread, or -1."""
    return int(driver.fakecuda_current())


def make_current(device: int | None) -> None:
    """Make the primary context of a device current, or none."""
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    if device is not None:
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def capture(stream: int, call: Any) -> tuple[Any, Any]:
    """Return what `call` returns, and a function that replays what it did on `stream`."""
    handle, graph, executable = ctypes.c_void_p(stream), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuStreamBeginCapture_v2(handle, 0) == 0  # global mode, the strictest
    result = call()
    assert driver.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
    flags = ctypes.c_ulonglong(0)
    assert driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, flags) == 0

    def replay() -> None:
        assert driver.cuGraphLaunch(executable, handle) == 0

    return result, replay


def new_stream(device: int) -> int:
    """Return a new stream of a device; current contexts stay as they are."""
    before, stream = current(), ctypes.c_void_p()
    make_current(device)
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    make_current(None if before < 0 else before)
    assert stream.value
    return stream.value


def alive() -> dict[str, int]:
    """Count what a call must not leave behind, on the driver's side and on ours."""
    gc.collect()
    kinds = ("contexts", "modules", "allocations", "bytes", "streams", "events", "graphs")
    counts = fakearray.counts()
    mine = {name: counts[name] for name in ("arrays", "memory", "without gil")}
    theirs = {name: driver.fakecuda_live(kind) for kind, name in enumerate(kinds)} if driver else {}
    return {**mine, **theirs, "jobs": _native._core.bridge_Live()}  # type: ignore[union-attr]


def check_memory() -> None:
    """Assert that no guard byte has changed and no deleter ran twice."""
    if driver:
        assert driver.fakecuda_damaged() == 0
    assert set(fakearray.deleted()) <= {0, 1}


def check_deleters() -> None:
    """Assert that every tensor that has changed hands was deleted, once."""
    gc.collect()
    assert set(fakearray.deleted()) <= {1}


# ---- types ----


class Exchange(Array):
    """Speaks DLPack 1.3: the exchange table in a capsule. No ``__dlpack__``."""

    __dlpack_c_exchange_api__ = fakearray.capsule(fakearray.exchange(1, 3))


class Int(Array):
    """Speaks DLPack 1.2: the address of the table."""

    __c_dlpack_exchange_api__ = fakearray.exchange(1, 2)


class Newer(Array):
    """Has a table of generation 3 that leads to one of 2 and that to ours."""

    __dlpack_c_exchange_api__ = fakearray.capsule(
        fakearray.exchange(3, 0, prev=fakearray.exchange(2, 7, prev=fakearray.exchange(1, 3)))
    )


class Owned(Array):
    """Lends nothing: each tensor is handed over with a deleter."""

    __dlpack_c_exchange_api__ = fakearray.capsule(fakearray.exchange(1, 3, borrow=False))


class Future(Array):
    """Has a table of generation 2 only, which we cannot read."""

    __dlpack_c_exchange_api__ = fakearray.capsule(fakearray.exchange(2, 0))


class Producer(Array):
    """Has ``__dlpack__`` and no exchange API."""

    options: ClassVar[dict[str, Any]] = {"name": "dltensor_versioned"}

    def __dlpack__(self, **_: Any) -> Any:
        return self.export(**self.options)


fakearray.set_results(Exchange)


def producer(name: str, **options: Any) -> type[Producer]:
    """Return a type whose ``__dlpack__`` gives such a capsule, see array.c."""
    return type("Producer", (Producer,), {"options": {"name": name, **options}})


# ---- memory ----


class Memory:
    """Bytes on a device, freed with the last array over them.

    `shift` moves them from an address that is a multiple of 256; kernels trap on what lies before.
    Memory of a device that does not exist is host memory that nobody may look at.
    """

    def __init__(self, device: tuple[int, int], data: bytes, shift: int = 0) -> None:
        size = shift + len(data)
        start = driver.fakecuda_alloc(device[1], size) if driver and device[0] == 2 else None
        self._own = start is not None
        if start is not None:
            driver.fakecuda_forbid(start, shift)
        else:
            self._buffer = ctypes.create_string_buffer(size + 256)
            start = -(-ctypes.addressof(self._buffer) // 256) * 256
        self._start = start
        self.address = start + shift
        self.write(data)

    def write(self, data: bytes) -> None:
        """Replace the bytes."""
        ctypes.memmove(self.address, data, len(data))

    def __del__(self) -> None:
        if self._own:
            driver.fakecuda_free(self._start)


def place(
    values: np.ndarray, device: tuple[int, int] = CUDA1, cls: Any = Exchange, shift: int = 0
) -> Any:
    """Return an array of type `cls` like `values`, strides and all, on a device."""
    before, after = span(values.shape, values.strides, values.itemsize)
    data = ctypes.string_at(values.ctypes.data - before, before + after)
    memory = Memory(device, data, shift)
    return cls(
        memory.address,
        values.shape,
        None if values.flags.c_contiguous else [s // values.itemsize for s in values.strides],
        (_KINDS[values.dtype.kind], 8 * values.itemsize),
        device,
        byte_offset=before,
        keep=memory,
    )


def values(array: Any, dtype: Any) -> np.ndarray:
    """Return what an array holds, wherever it is."""
    plain = np.empty(array.shape, dtype)
    steps = array.strides
    strides = plain.strides if steps is None else tuple(s * plain.itemsize for s in steps)
    before, after = span(array.shape, strides, plain.itemsize)
    raw = ctypes.string_at(array.address - before, before + after)
    return np.ndarray(array.shape, dtype, raw, before, strides).copy()


def span(shape: Any, strides: Any, itemsize: int) -> tuple[int, int]:
    """Return how many bytes a view touches before its first element, and from it on."""
    if 0 in shape:
        return 0, 0
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    return -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


# ---- jobs ----

Grid = list[list[Any]]


def features(grid: Grid) -> dict[str, list[Any]]:
    """Return the job whose entry of key k and batch b is ``grid[k][b]``."""
    return {str(k): list(line) for k, line in enumerate(grid)}


def oracle(grid: Grid, dim: int = 0) -> list[np.ndarray]:
    """Return what `flatten` must give for a grid of NumPy arrays."""
    return [np.concatenate(column, dim) for column in zip(*grid, strict=True)]


def small(device: tuple[int, int] = CUDA1, cls: Any = Exchange) -> tuple[Grid, list[np.ndarray]]:
    """Return 3 keys x 2 batches of (rows, 3) float32 on a device, and the right outputs."""
    rows, start = iter([2, 1, 0, 4, 3, 2]), iter(range(0, 600, 100))
    host = [
        [
            np.arange(3.0 * n, dtype=np.float32).reshape(n, 3) + next(start)
            for n in (next(rows), next(rows))
        ]
        for _ in range(3)
    ]
    return [[place(x, device, cls) for x in line] for line in host], oracle(host)


def assert_right(flat: Any, want: list[np.ndarray]) -> None:
    """Assert that outputs have the bits of `want`."""
    assert len(flat) == len(want)
    for b, (got, right) in enumerate(zip(flat, want, strict=True)):
        assert got.shape == right.shape, f"batch {b}"
        assert values(got, right.dtype).tobytes() == right.tobytes(), f"batch {b}"


class Raised:
    """What was raised in a ``with raising(...)`` block."""

    error: Any = None


class raising:
    """Assert that the block raises an error of that class whose text has those parts."""

    def __init__(self, cls: type[BaseException], *parts: str) -> None:
        self._cls, self._parts, self._raised = cls, parts, Raised()

    def __enter__(self) -> Raised:
        return self._raised

    def __exit__(self, cls: Any, error: Any, trace: Any) -> bool:
        assert cls is not None, f"no {self._cls.__name__}"
        if not issubclass(cls, self._cls):
            return False
        for part in self._parts:
            assert part in str(error), f"{part!r} is not in {error}"
        self._raised.error = error.with_traceback(None)
        return True


# ---- what several tests do ----


def works(device: tuple[int, int] = CUDA1) -> None:
    """Assert that a job on a device comes out right."""
    grid, want = small(device)
    assert_right(goflat.flatten(features(grid)), want)


def cpu_goes_on(parts: list[str]) -> None:
    """Assert that device arrays are refused with `parts`, again and again, and host arrays work."""
    host, want = small(CPU)
    grid, _ = small()
    assert_right(goflat.flatten(features(host)), want)
    clean = alive()
    for _ in range(2):
        with raising(goflat.DeviceError, *parts) as raised:
            goflat.flatten(features(grid))
        assert isinstance(raised.error, RuntimeError)
        raised.error = None
        assert_right(goflat.flatten(features(host)), want)
        assert alive() == clean
    assert parts[-1] in _native._core.bridge_Driver()  # type: ignore[union-attr]
