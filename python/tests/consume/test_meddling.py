"""Code that runs during the call: threads, callbacks, finalizers, filters."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    answer,
    job,
    new,
    parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


@contextmanager
def during_the_call(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` at each function of goflat that is entered, as a profiler would."""

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("goflat"):
            sys.setprofile(None)
            act()
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def attempt(features: Any) -> Any:
    """Consume; None if the call was refused."""
    try:
        return goflat.flatten_(features, max_growth=LOTS)
    except goflat.OwnershipError:
        return None


@pytest.mark.parametrize("nth", range(0, 60, 2))
@pytest.mark.parametrize("how", ["tensor", "view", "alias", "list", "storage"])
def test_somebody_takes_hold_during_the_call(nth: int, how: str) -> None:
    """At whatever moment: what was got stays as it was, or the call could not give it away."""
    features = job()
    originals = {key: [t.clone() for t in entries] for key, entries in features.items()}
    want, count = answer(features), [0]
    got: list[Any] = []

    def grab() -> None:
        count[0] += 1
        if count[0] == nth and features and features["1"] and features["1"][0] is not None:
            t = features["1"][0]
            got.append(
                {
                    "tensor": lambda: t,
                    "view": lambda: t[1:],
                    "alias": t.detach,
                    "list": lambda: features["1"],
                    "storage": t.untyped_storage,
                }[how]()
            )

    with during_the_call(grab):
        flat = attempt(features)
    if flat is None:
        assert_all_bits(features["1"], originals["1"])
        assert_all_bits(features["0"], originals["0"])
        got.clear()
        flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits([out.clone() for out in flat], want)
    for thing in got:
        if how == "view":
            assert_bits(thing, originals["1"][0][1:])
        elif how in ("tensor", "alias"):
            assert_bits(thing, originals["1"][0])


@pytest.mark.parametrize("nth", range(0, 60, 3))
@pytest.mark.parametrize("how", ["append", "pop", "replace", "clear", "add a key"])
def test_somebody_changes_containers_during_the_call(nth: int, how: str) -> None:
    features = job()
    want, count = answer(features), [0]
    taken: list[Any] = []

    def meddle() -> None:
        count[0] += 1
        if count[0] != nth or not features or not features["1"]:
            return
        if how == "append":
            features["1"].append(new())
        elif how == "pop":
            taken.append(features["1"].pop())
        elif how == "replace":
            features["1"][0] = new()
        elif how == "clear":
            features["1"].clear()
        else:
            features["2"] = [new(), new()]

    with during_the_call(meddle):
        flat = None
        with suppress(goflat.Error, RuntimeError):  # a dict that changed size during iteration
            flat = goflat.flatten_(features, max_growth=LOTS)
    if flat is not None and len(flat) == 2 and flat[0].shape == want[0].shape:
        assert_bits(flat[1].clone(), want[1])


def test_callbacks_of_entries_that_are_given_up() -> None:
    """They run between the steps, and may look at what is left."""
    features = parts([[4, 2], [3, 5]], order=5) | {"2": [new(3, 5), new(4, 6)]}
    others = {key: [weakref.ref(t) for t in features[key]] for key in "01"}
    originals = {key: [t.clone() for t in features[key]] for key in "01"}
    want, got = answer(features), []

    def look(_: Any) -> None:
        got.append({key: [t() for t in ts] for key, ts in others.items()})
        got.append({key: list(entries) for key, entries in features.items()})

    watch = [weakref.ref(t, look) for t in features["2"]]
    try:
        flat = goflat.flatten_(features, max_growth=LOTS)
    except goflat.OwnershipError as error:
        outputs = error.outputs  # type: ignore[attr-defined]
        assert all(o is None or torch.equal(o, w) for o, w in zip(outputs, want, strict=True))
    else:
        assert_all_bits([out.clone() for out in flat], want)
    for look_at in got:
        for key in "01":
            for now, then in zip(look_at.get(key, ()), originals[key], strict=False):
                assert now is None or torch.equal(now, then)
    del watch


def test_a_finalizer_that_resurrects() -> None:
    class Precious:
        """Keeps its tensor alive when it dies."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __del__(self) -> None:
            saved.append(self.tensor)

    saved: list[Tensor] = []
    features = job()
    features["0"][0].owner = Precious(features["0"][1])  # type: ignore[attr-defined]
    before, want = features["0"][1].clone(), answer(features)
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_bits(saved[0], before)


def test_a_callback_of_the_garbage_collector() -> None:
    features = job()
    originals = {key: [t.clone() for t in entries] for key, entries in features.items()}
    want, got = answer(features), []

    def grab(phase: str, _: Any) -> None:
        if phase == "start" and features and all(t is not None for t in features["0"]):
            got[:] = features["0"]

    old = gc.get_threshold()
    gc.callbacks.append(grab)
    gc.set_threshold(1)
    try:
        flat = attempt(features)
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(grab)
    if flat is not None:
        assert_all_bits([out.clone() for out in flat], want)
    assert got
    assert_all_bits(got, originals["0"])


def test_a_warning_filter_that_takes_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    features = parts([[4, 2], [3, 5]], order=5) | {"2": [new(30, 5), new(40, 6)]}
    want, got = answer(features), []
    originals = [t.clone() for t in features["0"]]
    monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: got.extend(features["0"]))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            flat = goflat.flatten_(features)
        except goflat.OwnershipError as error:
            assert "during the call" in str(error)
        else:
            assert_all_bits([out.clone() for out in flat], want)
    assert got
    assert_all_bits(got, originals)


def test_an_interrupt_leaves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    features = job()
    want = answer(features)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    core: Any = _native._core
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(core, "bridge_RunStep", interrupt)
        goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits([out.clone() for out in goflat.flatten_(features, max_growth=0)], want)
