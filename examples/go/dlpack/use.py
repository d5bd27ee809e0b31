"""Joins tensors of PyTorch in Go: python examples/go/dlpack/use.py libjoin.so cpu (or cuda)."""

from __future__ import annotations

import ctypes
import gc
import sys

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

NAME, USED = b"dltensor", b"used_dltensor"  # a capsule, and one whose tensor was taken

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
libc = ctypes.CDLL(None)


def load(path: str) -> ctypes.CDLL:
    """Load the shared library."""
    library = ctypes.CDLL(path)
    library.Join.restype = ctypes.c_void_p
    return library


def take(tensor: torch.Tensor) -> int:
    """Return the struct of a tensor, which whoever gets it has to delete."""
    capsule = to_dlpack(tensor)
    pointer: int = python.PyCapsule_GetPointer(capsule, NAME)
    python.PyCapsule_SetName(capsule, USED)
    return pointer


def join(library: ctypes.CDLL, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return one tensor, of memory of Go's that lives as long as it does."""
    stream = torch.cuda.current_stream().cuda_stream if tensors[0].is_cuda else 0
    structs = (ctypes.c_void_p * len(tensors))(*map(take, tensors))
    count, failed = ctypes.c_int64(len(tensors)), ctypes.c_char_p()
    joined = library.Join(structs, count, ctypes.c_size_t(stream), ctypes.byref(failed))
    if not joined:
        why = (failed.value or b"").decode()
        libc.free(failed)
        raise ValueError(why)
    result: torch.Tensor = from_dlpack(python.PyCapsule_New(joined, NAME, None))
    return result


def main(path: str, device: str) -> None:
    """Join, and show that memory lives as long as somebody uses it."""
    go = load(path)
    columns_first = torch.arange(12.0).reshape(3, 4).to(device).t()
    parts = [torch.ones(2, 3).to(device), columns_first, torch.zeros(1, 3).to(device)]
    result = join(go, parts)
    assert result.device == parts[0].device
    assert result.tolist() == [*parts[0].tolist(), *columns_first.tolist(), *parts[2].tolist()]
    print(tuple(result.shape), result.dtype, result.device.type, "from Go")

    tail, want = result[-2], result[-2].tolist()  # a view keeps the memory
    del result
    gc.collect()
    join(go, parts[::-1])
    assert tail.tolist() == want

    try:
        join(go, [torch.ones(2, 3).to(device), torch.ones(2, 4).to(device)])
    except ValueError as refused:
        print(refused)


if __name__ == "__main__":
    main(*sys.argv[1:])
