"""Arrays of libraries that goflat does not know, over NumPy memory."""

from __future__ import annotations

from typing import Any

import numpy as np


class Bare:
    """An array that can do nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = np.from_dlpack(array)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Standard(Bare):
    """An array of a library that follows the array API standard."""

    def __array_namespace__(self) -> Any:
        return Namespace


class Namespace:
    """The module of `Standard`."""

    from_dlpack = Standard


class OnGPU(Bare):
    """An array that says its memory is on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)
