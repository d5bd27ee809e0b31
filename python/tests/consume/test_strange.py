"""Entries given twice, overlapping, of odd forms; containers that lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import goflat
from goflat import _native
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    answer,
    job,
    new,
    own,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_the_same_tensor_or_list_twice() -> None:
    t = new()
    cases: list[tuple[Any, str]] = [
        ({"a": [t], "b": [t]}, "key 'b', batch 0: got the tensor that key 'a', batch 0 is already"),
        ({"a": [t, t]}, "key 'a', batch 1: got the tensor that key 'a', batch 0 is already"),
        (
            {"a": [new(), t], "b": [new(), t]},
            "key 'b', batch 1: got the tensor that key 'a', batch 1 is already",
        ),
        (
            {"a": [torch.nn.Parameter(t, False)] * 2},  # which the survey does not judge
            "key 'a', batch 1: got the tensor that key 'a', batch 0 is already",
        ),
    ]
    for features, message in cases:
        with pytest.raises(goflat.OwnershipError, match=message):
            goflat.flatten_(features, max_growth=LOTS)
        assert len(features["a"]) > 0
    entries = [new(), new(2)]
    with pytest.raises(goflat.OwnershipError):
        goflat.flatten_({"a": entries, "b": entries}, max_growth=LOTS)
    with pytest.raises(goflat.OwnershipError, match="tensor 2: got the tensor that tensor 1 is"):
        goflat.cat_([new(), t, t], max_growth=LOTS)
    batch = {"a": t}
    with pytest.raises(goflat.OwnershipError):
        goflat.flatten_([batch, batch], max_growth=LOTS)


def overlapping() -> list[Any]:
    t = new(8)
    return [t[:5], t[3:], t[2:4]]


def same_twice() -> list[Any]:
    t = new(8)
    return [t[:4], t[:4]]


def expanded() -> list[Any]:
    return [new(1).expand(4, 3), new(2)]


def turned() -> list[Any]:
    t = own((3, 8), torch.float32, 1)
    return [t.t()[:3], t.t()[3:]]


def columns() -> list[Any]:
    return list(own((4, 6), torch.float32, 1).split(3, 1))


def stepped() -> list[Any]:
    t = new(8)
    return [t[::2], t[1::2]]


def conjugated() -> list[Any]:
    t = own((4, 3), torch.complex64, 1).conj()
    return [t[:1], t[1:]]


def negative() -> list[Any]:
    return [own((4, 3), torch.complex64, 1).conj().imag, new(2)]


def subclass() -> list[Any]:
    class Mine(torch.Tensor):
        pass

    return [new().as_subclass(Mine), new(2).as_subclass(Mine)]


def parameter() -> list[Any]:
    return [torch.nn.Parameter(new(), requires_grad=False), new(2)]


def inference() -> list[Any]:
    with torch.inference_mode():
        return [torch.ones(2, 3), torch.zeros(1, 3)]


STRANGE = (
    *(overlapping, same_twice, expanded, turned, columns, stepped, conjugated, negative, subclass),
    *(parameter, inference),
)


@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
def test_strange_entries(make: Callable[[], list[Any]]) -> None:
    want = torch.cat([t.clone() for t in make()])
    want = want.resolve_conj().resolve_neg()
    got = goflat.cat_(make(), max_growth=LOTS)
    assert_bits(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
    kept = make()
    before = [t.detach().clone() for t in kept]
    goflat.cat_(list(kept), max_growth=LOTS).fill_(7)
    assert_all_bits([t.detach() for t in kept], before)


@pytest.mark.parametrize("pure", [False, True])
def test_leaves_that_require_grad(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pure:
        monkeypatch.setattr(_native, "_core", None)
    for leaf in (new().requires_grad_(), torch.nn.Parameter(new())):
        features = {"a": [new(2)], "b": [leaf]}
        before = leaf.detach().clone()
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(goflat.OwnershipError, match="key 'b', batch 0: got a leaf"):
                goflat.flatten_(features, max_growth=LOTS)
        assert features["b"][0] is leaf
        assert_bits(leaf.detach(), before)


def test_dispatch_modes() -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.extend(t for t in args if isinstance(t, torch.Tensor))
            return func(*args, **(kwargs or {}))

    seen: list[Tensor] = []
    features = job()
    want = answer(features)
    with Watching():
        flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert flat.plan.strategy == "stream"


def test_hostile_dicts_and_lists() -> None:
    class Counting(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)

        def clear(self) -> None:
            raise AssertionError("not emptied")

    class Mine(list[Any]):
        def clear(self) -> None:
            raise AssertionError("not emptied")

        def __setitem__(self, *_: Any) -> None:
            raise AssertionError("not written to")

    plain = job()
    want = answer(plain)
    features: Any = Counting(plain)
    plain.clear()
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_all_bits(answer(dict(features)), want)
    inner: dict[str, Any] = {key: Mine(entries) for key, entries in features.items()}
    kept = list(inner.values())
    del features
    assert_all_bits(list(goflat.flatten_(inner, max_growth=LOTS)), want)
    assert_all_bits(answer({str(i): list(x) for i, x in enumerate(kept)}), want)
