"""Callers that break in: containers that change during the call, odd mappings, modes, no memory."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job, tensor

pytestmark = pytest.mark.usefixtures("engine")

TOO_MANY = 2**50  # rows that no machine has memory for


class Producer:
    """An array of another library that does something when it is asked for its memory."""

    def __init__(self, array: np.ndarray, act: Any = None) -> None:
        self.array = array
        self.act = act

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self.act:
            act, self.act = self.act, None
            act()
        return self.array.__dlpack__(**kwargs)


def producers(count: int, act: Any = None) -> list[Producer]:
    return [Producer(np.full((2, 3), float(i)), act if i == 0 else None) for i in range(count)]


# Containers that change while an entry is read


def test_keys_that_vanish_while_an_entry_is_read(engine: str) -> None:
    features: dict[str, list[Producer]] = {}
    gone = {k: producers(2) for k in "bc"}
    features.update({"a": producers(2, lambda: [features.pop(k) for k in gone]), **gone})
    flat = goflat.flatten(features)
    left = {"a", "b", "c"} if engine == "fallback" else {"a"}
    assert set(flat.layout.keys) == left
    assert [array.shape for array in flat] == [(2 * len(left), 3)] * 2


def test_keys_that_appear_while_an_entry_is_read() -> None:
    features: dict[str, list[Producer]] = {}
    more = {str(k): producers(1) for k in range(20)}
    features["a"] = producers(1, lambda: features.update(more))
    flat = goflat.flatten(features)
    assert flat[0].shape[0] == 2 * len(flat.layout.keys)


def test_ordered_dict_that_changes_while_an_entry_is_read() -> None:
    features: OrderedDict[str, list[Producer]] = OrderedDict()
    features["a"] = producers(1, lambda: features.pop("b"))
    features["b"] = producers(1)
    flat = goflat.flatten(features)
    assert flat[0].shape[0] == 2 * len(flat.layout.keys)


def test_ordered_dict_with_a_key_that_it_does_not_know_of() -> None:
    features = OrderedDict(a=[np.ones((2, 3))])
    dict.__setitem__(features, "b", [np.zeros((1, 3))])
    assert_all_bits(goflat.flatten(features), [np.ones((2, 3))])


def test_mappings_of_batches_that_vanish_while_an_entry_is_read(engine: str) -> None:
    features: list[Any] = []
    features[:] = [dict(zip("ab", producers(2, features.clear), strict=True)) for _ in range(2)]
    try:
        flat = goflat.flatten(features)
    except goflat.Error:
        assert engine == "native"  # which looks at the containers a second time
    else:
        assert all(array.shape == (4, 3) for array in flat)


def test_entries_dropped_while_torch_looks_at_them() -> None:
    class Dropping(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            row.clear()
            return func(*args, **(kwargs or {}))

    goflat.flatten(job([[1]]))  # plain tensors are known by now
    row = [torch.ones(4).requires_grad_().requires_grad_(False) for _ in range(3)]
    with Dropping():
        flat = goflat.flatten({"a": row})
    assert all(bool((batch == 1).all()) for batch in flat)


@pytest.mark.parametrize("major", ["key", "batch"])
def test_containers_emptied_by_another_thread_during_the_copy(major: str) -> None:
    def empty_when(ready: threading.Event, features: Any) -> None:
        ready.wait()
        features.clear()

    for _ in range(5):
        row = [torch.ones(1 << 20), torch.ones(1 << 20)]
        features: Any = {"a": row, "b": row} if major == "key" else [{"a": row[0], "b": row[1]}] * 2
        ready = threading.Event()
        thread = threading.Thread(target=empty_when, args=(ready, features))
        thread.start()
        ready.set()
        flat = goflat.flatten(features)
        thread.join()
        assert flat.layout.keys in ((), ("a", "b"))
        assert [len(batch) for batch in flat] == [2 << 20] * len(flat)


# Errors


def test_more_dimensions_than_numpy_has() -> None:
    entries = [torch.ones((1,) * 70), torch.zeros((1,) * 70)]
    assert_bits(goflat.cat(entries, 69), torch.cat(entries, 69))


def test_overlaps_are_told_in_the_same_words() -> None:
    buffer = torch.zeros(8, 3)

    def text(out: list[Any], features: Any, **kwargs: Any) -> str:
        with pytest.raises(goflat.OverlapError) as caught:
            goflat.flatten(features, out=out, **kwargs)
        return str(caught.value)

    entry = {"a": [tensor((2, 3)), buffer[:4]]}
    want = "key 'a', batch 1: got bytes shared with output 0, want outputs apart from entries"
    assert text([buffer[2:4], torch.zeros(4, 3)], entry) == want
    want = "batch 1: got bytes shared with output 0, want outputs apart"
    assert text([buffer[2:4], buffer[3:5]], job([[2, 2]])) == want
    want = "got strides (0, 4) for shape (4, 3), want elements that share no byte"
    one = torch.zeros(1, 3).expand(4, 3)
    assert text([one], job([[4]])) == f"batch 0: {want}"
    assert text(one, job([[4]]), packed=True) == want  # type: ignore[arg-type]


def test_a_packed_out_is_that_of_no_batch() -> None:
    def refused(out: torch.Tensor) -> tuple[Any, Any]:
        with pytest.raises(goflat.Error) as caught:
            goflat.flatten(job([[1, 2]]), out=out, packed=True)
        return caught.value.key, caught.value.batch

    for out in (
        torch.zeros(4, 3),
        torch.zeros(3, 3, dtype=torch.float64),
        torch.zeros(1, 3).expand(3, 3),
        torch.zeros(3, 3, dtype=torch.complex64).conj(),
        torch.zeros(3, 3, device="meta"),
    ):
        assert refused(out) == (None, None)


def test_an_error_inside_a_finalizer_of_a_failed_call() -> None:
    class Finalized(Producer):
        def __del__(self) -> None:
            finalized.append(True)
            with pytest.raises(KeyboardInterrupt, match="inner"):
                goflat.flatten({"a": [Producer(np.ones(1), lambda: interrupt("inner"))]})

    def interrupt(text: str) -> None:
        row.clear()
        raise KeyboardInterrupt(text)

    finalized: list[bool] = []
    row: list[Any] = []
    row += [Finalized(np.ones(1)), Finalized(np.ones(1), lambda: interrupt("outer"))]
    with pytest.raises(KeyboardInterrupt, match="outer"):
        goflat.flatten({"a": row})
    gc.collect()
    assert finalized == [True, True]
