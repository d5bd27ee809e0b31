"""Callers that break in: containers that change during the call, odd mappings, modes, no memory."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import goflat
from helpers import child
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job, oracle, tensor

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


def test_a_key_that_goes_and_comes_back_while_an_entry_is_read() -> None:
    features: dict[str, list[Producer]] = {}
    features.update(a=producers(1), b=producers(1, lambda: come_back("a")), c=producers(1))

    def come_back(key: str) -> None:
        features[key] = features.pop(key)
        del features["c"]

    flat = goflat.flatten(features)
    assert len(set(flat.layout.keys)) == len(flat.layout.keys)
    assert flat[0].shape[0] == 2 * len(flat.layout.keys)
    assert sum(rows for (rows,) in flat.layout.rows.values()) == len(flat[0])


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


# Mappings and sequences of other classes


class Multi(Mapping[str, Any]):
    """A mapping that may have a key twice, as those of HTTP headers do."""

    def __init__(self, *items: tuple[str, Any]) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return next(value for name, value in self.items_ if name == key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)


def test_a_key_twice() -> None:
    with pytest.raises(goflat.ShapeError, match="key 'a': got the key twice, want each key once"):
        goflat.flatten(Multi(("a", [torch.ones(1)]), ("a", [torch.ones(2)])))
    with pytest.raises(goflat.ShapeError, match="key 'a': got the key twice"):
        goflat.flatten([Multi(("a", torch.ones(1)), ("a", torch.ones(2)))])
    assert goflat.flatten(Multi(("a", [torch.ones(1)]), ("b", [torch.ones(2)])))[0].shape == (3,)


class Liar(Sequence[Any]):
    """A sequence whose length is not the number of its items."""

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("length", [0, 1, 5])
def test_sequences_that_lie_about_their_length(length: int) -> None:
    features = {"a": Liar([torch.ones(2), torch.zeros(1)], length), "b": [torch.ones(1)] * 2}
    assert [tuple(batch.shape) for batch in goflat.flatten(features)] == [(3,), (2,)]
    with pytest.raises(goflat.ShapeError, match="key 'b': got 1 batches, want 2"):
        goflat.flatten({**features, "b": [torch.ones(1)]})


def test_a_bool_is_no_dim() -> None:
    with pytest.raises(goflat.DTypeError, match="dim of type bool"):
        goflat.flatten(job([[1]]), dim=True)


def test_a_buffer_for_no_batches_is_an_array() -> None:
    with pytest.raises(goflat.DTypeError, match="out of type int, want an array"):
        goflat.flatten({"a": []}, out=5, packed=True)  # type: ignore[call-overload]


def test_more_dimensions_than_numpy_has() -> None:
    entries = [torch.ones((1,) * 70), torch.zeros((1,) * 70)]
    assert_bits(goflat.cat(entries, 69), torch.cat(entries, 69))


# Errors


@pytest.mark.parametrize("other", [None, [1], "x", object(), np.zeros((2, 3), np.float32)])
def test_no_tensor_behind_one_that_requires_grad(other: Any) -> None:
    features = {"a": [tensor((2, 3)).requires_grad_()], "b": [other]}
    for packed in (False, True):
        with pytest.raises(goflat.DTypeError, match=r"key 'b', batch 0: got .*, want ") as caught:
            goflat.flatten(features, packed=packed)
        assert (caught.value.key, caught.value.batch) == ("b", 0)


@pytest.mark.parametrize("answer", [None, (), 1 / 2, "raise"])
def test_a_producer_that_does_not_say_where_it_lies(answer: Any) -> None:
    class Lost(Producer):
        def __dlpack_device__(self) -> Any:
            if answer == "raise":
                raise ZeroDivisionError("nowhere")
            return answer

    with pytest.raises(goflat.Error, match=r"key 'a', batch 0: got test_hostile\..*Lost"):
        goflat.flatten({"a": [Lost(np.ones(1))]})


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


# No memory for the outputs


def huge(framework: str, **kwargs: Any) -> Any:
    if framework == "torch":
        return torch.zeros(1, **kwargs).expand(TOO_MANY)
    return np.broadcast_to(np.zeros(1), (TOO_MANY,))


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_out_of_memory_keeps_the_words_of_the_framework(framework: str) -> None:
    entry = huge(framework)
    half: Any = torch.float16 if framework == "torch" else np.float16
    for call in (
        lambda: goflat.flatten({"a": [entry], "b": [entry]}),
        lambda: goflat.flatten({"a": [entry], "b": [entry]}, packed=True),
        lambda: goflat.flatten({"a": [entry]}, dtype=half),
        lambda: goflat.cat([entry, entry]),
        lambda: goflat.cat([entry, entry], dtype=half),
    ):
        with pytest.raises(goflat.OutOfMemoryError, match="allocate"):
            call()


def test_out_of_memory_with_autograd() -> None:
    with pytest.raises(goflat.OutOfMemoryError, match="allocate"):
        goflat.flatten({"a": [huge("torch", requires_grad=True)]})


def test_out_of_memory_leaves_everything_as_it_was() -> None:
    entry, small = huge("torch"), tensor((2,))
    features = {"a": [small, entry], "b": [small, entry]}
    before = {key: list(entries) for key, entries in features.items()}
    with pytest.raises(goflat.OutOfMemoryError):
        goflat.flatten(features)
    assert features == before
    assert_all_bits(goflat.flatten({"a": [small]}), [small])


# First use of goflat inside a mode of torch

MODES = {
    "none": "contextlib.nullcontext()",
    "inference": "torch.inference_mode()",
    "default device": "torch.device('meta')",
    "function mode": "Faking()",
    "dispatch mode": "Watching()",
    "dual level": "forward_ad.dual_level()",
}


@pytest.mark.parametrize("mode", MODES)
def test_first_use_inside_a_mode(engine: str, mode: str) -> None:
    code = f"""
    import contextlib, torch, goflat
    from goflat import _native
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []
    class Faking(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {{}}))
            return result.to("meta") if func in (torch.zeros, torch.empty) else result
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {{}}))
    features = {{"a": [torch.ones(2, 3)], "b": [torch.zeros(1, 3)]}}
    with {MODES[mode]}:
        inside = goflat.flatten(features)
    outside = goflat.flatten(features)
    want = torch.cat([features["a"][0], features["b"][0]])
    for flat in (inside, outside):
        assert flat[0].device.type == "cpu" and flat[0].equal(want)
    assert torch.ops.aten.zeros.default not in seen
    met = _native._met.get("torch")
    print(met)
    """
    met = child.fork(code, engine=engine)
    assert engine == "fallback" or met == child.fork(code_without(code, mode), engine=engine)


def code_without(code: str, mode: str) -> str:
    return code.replace(f"with {MODES[mode]}:", f"with {MODES['none']}:")


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_first_use_inside_a_function_transform(engine: str, transform: str) -> None:
    code = """
    import torch, goflat
    from goflat import _native
    features = {"a": [torch.ones(2, 3)], "b": [torch.zeros(1, 3)]}
    def inside(x):
        return (goflat.flatten(features)[0] * x).sum()
    torch.func.%s(inside)(torch.ones(3))
    goflat.flatten(features)
    print(_native._met.get("torch"))
    """
    met = child.fork(code % transform, engine=engine)
    plain = code.replace("torch.func.%s(inside)(torch.ones(3))", "pass")
    assert engine == "fallback" or met == child.fork(plain, engine=engine)


def test_what_a_dispatch_mode_sees_is_the_join_alone() -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    features = job([[1], [2]])
    with Watching():
        flat = goflat.flatten(features)
    assert_all_bits(flat, oracle(features))
    assert not [name for name in seen if "zeros" in name]
