"""Bitwise equality, with the first coordinate at which two arrays differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_bits(got: Any, want: Any) -> None:
    """Assert that `got` is `want`: framework, dtype, shape, device and every bit."""
    assert type(got) is type(want)
    assert (got.dtype, tuple(got.shape)) == (want.dtype, tuple(want.shape))
    if isinstance(got, torch.Tensor):
        assert got.device == want.device
    wrong = (_bytes(got) != _bytes(want)).any(axis=-1)
    if wrong.any():
        flat = int(wrong.argmax())
        where = tuple(int(i) for i in np.unravel_index(flat, tuple(got.shape)))
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements differ, first at {where}: "
            f"got {_bytes(got)[flat].tobytes().hex()}, want {_bytes(want)[flat].tobytes().hex()}"
        )


def assert_all_bits(got: list[Any], want: list[Any]) -> None:
    """Assert that two lists of arrays are equal bit for bit."""
    assert len(got) == len(want)
    for b, pair in enumerate(zip(got, want, strict=True)):
        try:
            assert_bits(*pair)
        except AssertionError as error:
            raise AssertionError(f"batch {b}: {error}") from None


def _bytes(array: Any) -> np.ndarray:
    """Return the bytes of an array in row-major order, one line per element."""
    if isinstance(array, np.ndarray):
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        return raw.reshape(array.size, array.itemsize)
    plain = array.detach().resolve_conj().resolve_neg().contiguous()
    start = plain.storage_offset() * plain.element_size()
    count = plain.numel() * plain.element_size()
    view = torch.empty(0, dtype=torch.uint8)
    view.set_(plain.untyped_storage(), start, (count,), (1,))
    return view.numpy().reshape(plain.numel(), plain.element_size())
