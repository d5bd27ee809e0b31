"""Contexts in processes where torch.cuda runs on the fake driver, through cudart.c.

Memory and statistics are real, work on it is not: there are no streams to wait for.
"""

from __future__ import annotations

import ctypes
import os
import random
from typing import TYPE_CHECKING, Any

import torch

from goflat import _collect, _native, _room
from helpers import child

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.zygote import Zygote

MIB = 1 << 20
OOM = torch.OutOfMemoryError
SELECTIVE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)


def on_torch(settings: str = "") -> Callable[[Callable[[], None]], Any]:
    """Turn a test into one that runs in a process of its own, with CUDA tensors on fake devices."""

    def decorate(test: Callable[[], None]) -> Any:
        def outside(zygotes: Callable[[str], Zygote]) -> None:
            code = f"from {test.__module__} import {test.__name__} as t; t.inside()"
            status, output = zygotes(settings).run(code, child.TIMEOUT_S)
            assert (status, output) == (0, ""), f"exit status {status}\n{output}"

        outside.__name__, outside.__doc__ = test.__name__, test.__doc__
        outside.inside = test  # type: ignore[attr-defined]
        return outside

    return decorate


# ---- in the child ----


def driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.fakecuda_call.restype = ctypes.c_char_p
    library.fakecuda_vmm.restype = ctypes.c_longlong
    library.fakecuda_limit.argtypes = (ctypes.c_size_t,)
    return library


def cudart() -> Any:
    library = ctypes.CDLL(os.environ["CUDART"])
    library.fakecudart_capacity.argtypes = (ctypes.c_size_t,)
    return library


def told() -> list[tuple[str, int, int, int]]:
    """Return what streams were told since the last time.

    ``("wait", device, stream, other)`` for one that waits for another, ``("record", device, stream,
    0)`` for an event; `device` is the one that was current.
    """
    library, fields = cudart(), (ctypes.c_uint64 * 4)()
    found = []
    while library.fakecudart_told(len(found), fields):
        kind, device, stream, other = fields
        found.append((("wait", "record")[kind], device, stream, other))
    library.fakecudart_forget()
    return found


def physical() -> int:
    """Return the bytes of memory behind ranges."""
    return int(driver().fakecuda_vmm(1))


def mapping_calls() -> list[str]:
    """Return the driver calls since the last time that change what is mapped."""
    lib = driver()
    log = [lib.fakecuda_call(i).decode() for i in range(lib.fakecuda_calls())]
    lib.fakecuda_reset()
    return [call for call in log if call in ("cuMemCreate", "cuMemMap", "cuMemUnmap")]


def launches() -> list[tuple[int, int]]:
    """Return (device, stream) of the kernels launched since the last time."""
    lib = driver()
    log = [lib.fakecuda_call(i).decode().split() for i in range(lib.fakecuda_calls())]
    lib.fakecuda_reset()
    found = [words for words in log if words[0].startswith("cuLaunch")]
    return [(int(words[3]), int(words[-1].replace("(nil)", "0"), 16)) for words in found]


def mib(count: float, device: int = 0) -> torch.Tensor:
    """Return a tensor of `count` MiB whose bytes nobody set."""
    return torch.empty(int(count * MIB), dtype=torch.uint8, device=device)


def produce(entries: int = 16) -> list[torch.Tensor]:
    """Return entries of 1 to 14 MiB, with temporaries in between."""
    made = []
    for i in range(entries):
        temporary = mib(3 + i % 5)
        made.append(mib(1 + 13 * (i % 4) / 3))
        del temporary
    return made


def range_of(tensor: torch.Tensor) -> int:
    """Return the id of the range that a tensor lies in, 0 for none."""
    answer = core().bridge_CollectRange(tensor.data_ptr())
    return int(answer.split()[0]) if answer else 0


def core() -> Any:
    return _native._core


def reserved(device: int = 0) -> int:
    return int(torch.cuda.memory_reserved(device))


class Records:
    """What a survey says about entries, as far as `Room` asks."""

    def __init__(self, *entries: torch.Tensor) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def address(self, e: int) -> int:
        return self._entries[e].data_ptr()

    def nbytes(self, e: int) -> int:
        return self._entries[e].nbytes


def room_of(*entries: torch.Tensor) -> _room.Room:
    return _collect.room(entries[0].device, Records(*entries))


def fill(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Write different bytes to each; return what they are."""
    want = [torch.full((t.numel(),), i % 251, dtype=torch.uint8) for i, t in enumerate(tensors)]
    for t, w in zip(tensors, want, strict=True):
        t.copy_(w)
    return want


def check(tensors: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert all(torch.equal(t.cpu(), w) for t, w in zip(tensors, want, strict=True))


def check_nothing_left() -> None:
    torch.cuda.empty_cache()
    assert [torch.cuda.memory_allocated(d) for d in range(2)] == [0, 0]
    assert [reserved(d) for d in range(2)] == [0, 0]
    assert physical() == 0


def ragged(seed: int) -> dict[str, list[torch.Tensor]]:
    """Return 4 keys x 3 batches of up to 600 rows of 64 floats, with temporaries in between."""
    r = random.Random(seed)
    made: dict[str, list[torch.Tensor]] = {}
    for k in range(4):
        made[str(k)] = []
        for _ in range(3):
            temporary = mib(r.random() * 3)
            entry = torch.empty(r.randrange(600), 8, 8, device=temporary.device)
            made[str(k)].append(entry.copy_(torch.randn(entry.shape)))
            del temporary, entry
    return made
