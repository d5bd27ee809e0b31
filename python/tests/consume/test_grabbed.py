"""Whatever gets hold of an entry between the steps of a call, in whatever way, sees it unchanged.

Many ways leave the reference counts of the entry itself alone: only those of its storage tell.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native
from helpers.compare import assert_all_bits
from helpers.consuming import LOTS, apart, job, own, parts
from helpers.owning import WAYS, asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

GRABS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda t: t,
    "data": lambda t: t.data,
    "detached": lambda t: t.detach(),
    "view": lambda t: t[:],
    "base": lambda t: t._base,
    "storage": lambda t: t.untyped_storage(),
    "typed storage": lambda t: t.storage(),
    "set_": lambda t: torch.empty(0).set_(t),
    "NumPy twin": lambda t: t.numpy(),
    "memoryview": lambda t: memoryview(t.numpy()),
    "DLPack twin": lambda t: torch.from_dlpack(t),
    "capsule": lambda t: torch.utils.dlpack.to_dlpack(t),
    "parameter": lambda t: torch.nn.Parameter(t),
    "saved for backward": lambda t: torch.ones_like(t).requires_grad_() * t,
}


def bytes_of(thing: Any) -> bytes | None:
    """Return what a thing that somebody got hold of shows; None for what cannot be read twice."""
    if isinstance(thing, torch.Tensor):
        return thing.detach().numpy().tobytes() if thing.grad_fn is None else None
    if isinstance(thing, torch.UntypedStorage | torch.TypedStorage):
        return bytes(thing.untyped().tolist())
    return bytes(thing) if isinstance(thing, memoryview | np.ndarray) else None


def several() -> dict[str, list[Tensor]]:
    """Return a job that gives entries up between moves over others: keys "0" and "1" of these."""
    features = parts([[3, 1, 2, 0], [2, 4, 1, 3]], order=1, gap=1)
    others = apart([[4, 2, 5, 1], [1, 7, 2, 2]])
    return features | {f"apart {key}": line for key, line in others.items()}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grab", GRABS)
def test_callbacks_that_get_hold_of_what_is_left(grab: str, way: str) -> None:
    features = several()
    movable = [weakref.ref(t) for key in "01" for t in features[key] if t.numel()]
    originals = [t().clone().numpy().tobytes() for t in movable]  # type: ignore[union-attr]
    got: list[tuple[int, Any]] = []

    def look(_: Any) -> None:
        if not got:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                left = ((i, ref()) for i, ref in enumerate(movable))
                got.extend((i, GRABS[grab](t)) for i, t in left if t is not None)

    watch = [weakref.ref(t, look) for key in features if key > "1" for t in features[key]]
    with asking(way), pytest.raises(goflat.OwnershipError, match="got hold of during the call"):
        goflat.flatten_(features, max_growth=LOTS)
    assert got
    seen = [(i, bytes_of(thing)) for i, thing in got]
    for i, now in seen if grab not in ("base", "storage", "typed storage") else ():
        assert now is None or now == originals[i]
    got.clear()
    del watch


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grab", GRABS)
def test_a_profiler_that_gets_hold_at_the_last_moment(grab: str, way: str) -> None:
    features = job()
    before = {key: [t.clone() for t in entries] for key, entries in features.items()}
    movable = [weakref.ref(t) for entries in features.values() for t in entries]
    got: list[Any] = []

    def hook(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") == "bridge_RunStep" and not got:
            sys.setprofile(None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got.extend(GRABS[grab](t) for t in [ref() for ref in movable] if t is not None)

    with asking(way):
        try:
            sys.setprofile(hook)
            with pytest.raises(goflat.OwnershipError, match="got hold of during the call"):
                goflat.flatten_(features, max_growth=LOTS)
        finally:
            sys.setprofile(None)
    assert got
    got.clear()
    for key, entries in features.items():
        assert_all_bits(entries, before[key])


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "set_": lambda t: t.set_(torch.ones(t.shape)),
    "data": lambda t: setattr(t, "data", torch.ones(t.shape)),
    "requires_grad_": lambda t: t.requires_grad_(),
    "resize_": lambda t: t.resize_(1, 3),
    "as_strided_": lambda t: t.as_strided_((1, 3), (3, 1)),
    "t_": lambda t: t.t_(),
    "storage": lambda t: t.untyped_storage().resize_(1 << 16),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_callbacks_that_change_what_an_entry_is(change: str, way: str) -> None:
    """Plans are made of addresses: nothing moves once one of them is no longer true."""
    features = several()
    entry, called = weakref.ref(features["0"][0]), list[bool]()

    def alter(_: Any) -> None:
        left = entry()
        if left is not None and not called:
            called.append(True)
            CHANGES[change](left)

    watch = [weakref.ref(t, alter) for key in features if key > "1" for t in features[key]]
    with asking(way), pytest.raises(goflat.OwnershipError, match="got hold of during the call"):
        goflat.flatten_(features, max_growth=LOTS)
    assert called
    del watch


MOVES = {name: CHANGES[name] for name in ("set_", "data", "resize_", "storage")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("change", MOVES)
def test_callbacks_that_take_memory_away_that_is_only_read(
    change: str, held: bool, way: str
) -> None:
    features = apart([[2, 5, 3], [7, 2, 4]])  # every output is new: one after the other
    entries = [t for line in features.values() for t in line]
    watches = [weakref.ref(t) for t in entries]
    kept = entries[:] if held else []
    del entries
    called: list[bool] = []

    def alter() -> None:
        if not called:
            called.append(True)
            for entry in watches:
                left = entry()
                if left is not None:
                    CHANGES[change](left)

    def hook(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") == "bridge_RunStep":
            sys.setprofile(None)
            alter()

    with asking(way):
        sys.setprofile(hook)
        try:
            with pytest.raises(goflat.OwnershipError, match="got hold of during the call"):
                goflat.flatten_(features, max_growth=LOTS)
        finally:
            sys.setprofile(None)
    assert called
    del kept


def unmoved() -> dict[str, list[Tensor]]:
    """Return a job whose output 0 is entry "0", 0 as it lies, and whose output 1 is new."""
    return {
        "0": [own((4, 3), torch.float32, 1), own((4, 3), torch.float32, 2)],
        "1": [own((0, 3), torch.float32, 3), own((4, 3), torch.float32, 4)],
    }


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grab", [grab for grab in GRABS if grab != "base"])  # there is none
def test_an_entry_that_becomes_an_output_unmoved(grab: str, way: str) -> None:
    features, got = unmoved(), list[Any]()
    entry = weakref.ref(features["0"][0])

    def look(_: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got.append(GRABS[grab](entry()))

    watch = weakref.ref(features["1"][1], look)
    with asking(way), pytest.raises(goflat.OwnershipError, match="got hold of") as raised:
        goflat.flatten_(features, max_growth=LOTS)
    assert got
    first, second = raised.value.outputs  # type: ignore[attr-defined]
    assert (first, second.shape) == (None, (8, 3))
    assert features["0"][0] is entry()
    assert (features["0"][1], features["1"][1]) == (None, None)
    got.clear()
    del watch
