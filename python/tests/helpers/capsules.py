"""DLPack capsules made by hand, right and wrong ones, over NumPy memory.

Structures of dlpack.h 0.8 (legacy, without a version), which producers still make.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU = 1
_FLOAT = 2


class DLTensor(ctypes.Structure):
    """A strided view; what both kinds of managed tensor hold."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """DLManagedTensor: the view, and how to give it back."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Handmade:
    """An array whose capsules are as told.

    Parameters
    ----------
    array : ndarray of float32
        Memory to export.
    name : bytes
        Name of the capsule; ``b"dltensor"`` is the right one.
    skip : int
        Bytes to leave out at the start by ``byte_offset`` instead of the data pointer.
    strides : bool
        Whether to say strides; NULL stands for a compact array.
    deleter : bool
        Whether there is one; NULL stands for nothing to give back.
    """

    def __init__(
        self,
        array: np.ndarray,
        *,
        name: bytes = b"dltensor",
        skip: int = 0,
        strides: bool = True,
        deleter: bool = True,
    ) -> None:
        self.exports = 0
        self.deleted = 0
        self._array = array
        self._name = name
        self._skip = skip
        self._strides = strides
        self._deleter = _Deleter(self._delete) if deleter else None
        self._alive: list[Any] = []

    def __dlpack__(self, stream: Any = None) -> Any:
        self.exports += 1
        managed = self._managed()
        self._alive.append(managed)
        return _new_capsule(ctypes.addressof(managed), self._name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def _managed(self) -> Managed:
        array = self._array
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self._alive += [shape, steps]
        address = array.ctypes.data - self._skip
        strides = steps if self._strides else None
        view = DLTensor(address, CPU, 0, array.ndim, _FLOAT, 32, 1, shape, strides, self._skip)
        deleter = ctypes.cast(self._deleter, ctypes.c_void_p) if self._deleter else None
        return Managed(view, None, deleter)

    def _delete(self, _managed: int) -> None:
        self.deleted += 1
