"""DLPack capsules of every kind that producers make, and some that they should not."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import goflat
from helpers.capsules import Handmade
from helpers.compare import assert_bits

pytestmark = pytest.mark.usefixtures("engine")


def numbers(rows: int = 3) -> np.ndarray:
    return np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)


@pytest.mark.parametrize(
    "options",
    [{}, {"skip": 16}, {"strides": False}, {"deleter": False}, {"skip": 4, "deleter": False}],
    ids=str,
)
def test_legacy_capsules(options: dict[str, Any]) -> None:
    a, b = Handmade(numbers(), **options), Handmade(numbers(2), **options)
    (flat,) = goflat.flatten({"a": [a], "b": [b]})
    assert_bits(flat, np.concatenate([numbers(), numbers(2)]))
    gc.collect()
    if options.get("deleter", True):
        assert (a.deleted, b.deleted) == (a.exports, b.exports)


def test_strided_capsule() -> None:
    base = np.arange(48.0, dtype=np.float32).reshape(6, 8)
    (flat,) = goflat.flatten({"a": [Handmade(base[::2, ::2])], "b": [Handmade(base.T[:2, :4])]})
    assert_bits(flat, np.concatenate([base[::2, ::2], base.T[:2, :4]]))


def test_empty_capsule() -> None:
    (flat,) = goflat.flatten({"a": [Handmade(numbers(0))], "b": [Handmade(numbers(1))]})
    assert_bits(flat, numbers(1))


def test_0_dim_capsule() -> None:
    with pytest.raises(goflat.ShapeError, match="key 'a', batch 0"):
        goflat.flatten({"a": [Handmade(np.array(1, np.float32))]})


@pytest.mark.parametrize("name", [b"used_dltensor", b"dltensor_versioned_", b"nonsense"])
def test_wrong_names_are_refused(name: bytes) -> None:
    good, bad = Handmade(numbers(), deleter=False), Handmade(numbers(), name=name)
    with pytest.raises(goflat.DTypeError, match=r"key 'b', batch 0: got .*Handmade that NumPy"):
        goflat.flatten({"a": [good], "b": [bad]})
    assert bad.deleted == 0


def test_capsules_are_given_back_after_an_error() -> None:
    a, b = Handmade(numbers()), Handmade(numbers()[:, :3])
    with pytest.raises(goflat.ShapeError) as caught:
        goflat.flatten({"a": [a], "b": [b]})
    del caught
    gc.collect()
    assert (a.deleted, b.deleted) == (a.exports, b.exports)


def test_versioned_capsules_of_numpy() -> None:
    class Newest:
        def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
            asked.append(max_version)
            return numbers().__dlpack__(max_version=(1, 0), **options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    asked: list[Any] = []
    (flat,) = goflat.flatten({"a": [Newest()], "b": [Newest()]})
    assert_bits(flat, np.concatenate([numbers(), numbers()]))
    assert all(version is not None for version in asked)


def test_error_of_the_producer_reaches_the_caller() -> None:
    class Broken(Handmade):
        def __dlpack__(self, stream: Any = None) -> Any:
            raise BufferError("not today")

    with pytest.raises(goflat.DTypeError, match=r"key 'a', batch 0: got .*not today"):
        goflat.flatten({"a": [Broken(numbers())]})
