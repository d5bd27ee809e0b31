"""Failures at every step: what is done, what is left, and what is lost."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _inplace, _native
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    answer,
    apart,
    live,
    native,
    own,
    parts,
)

if TYPE_CHECKING:
    from torch import Tensor

    Features = dict[str, list[Tensor]]


class Broken(Exception):
    pass


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let call `number` of a function of the extension, or of torch.empty, fail."""
    count = [0]

    def fail(*args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            raise RuntimeError("OOM|-1|-1|nothing|some memory: a test does not let allocate")
        return real(*args, **options)

    owner: Any = _inplace.torch if name == "empty" else _native._core
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, fail)


def mixed() -> Features:
    """Return a job of several allocations, moves and frees, and outputs in place."""
    features = parts([[3, 1, 2, 0], [2, 4, 1, 3]], order=1, gap=1)
    for key, entries in apart([[4, 2, 5, 1], [1, 7, 2, 2]]).items():
        features[f"apart {key}"] = entries
    return features


@native
@pytest.mark.parametrize("name", ["empty", "bridge_SetBase", "bridge_RunStep", "bridge_Adopt"])
def test_a_failure_at_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 100):
        features = mixed()
        want = answer(features)
        originals = {
            (key, b): t.clone() for key, entries in features.items() for b, t in enumerate(entries)
        }
        with monkeypatch.context() as patch:
            failing(patch, name, number)
            try:
                flat = goflat.flatten_(features, max_growth=LOTS)
                outputs = None
            except goflat.OutOfMemoryError as error:
                outputs = error.outputs  # type: ignore[attr-defined]
        if outputs is None:
            assert number > 1
            assert_all_bits(list(flat), want)
            return
        left = {
            (key, b): t
            for key, entries in features.items()
            for b, t in enumerate(entries)
            if t is not None
        }
        assert_all_bits(list(left.values()), [originals[at] for at in left])
        for b, out in enumerate(outputs):
            if out is not None:
                assert_bits(out, want[b])
        joined = list(left.values())
        left.clear()
        features.clear()
        outputs = out = None
        if joined:
            again = torch.cat(joined).clone()
            assert_bits(goflat.cat_(joined, max_growth=LOTS), again)
        gc.collect()
        assert live() == (0, 0, 0)
    raise AssertionError("it never stopped failing")


@native
def test_a_first_failure_changes_nothing_and_can_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = apart(ROWS)
    want = answer(features)
    with monkeypatch.context() as patch:
        failing(patch, "empty", 1)
        try:
            goflat.flatten_(features, max_growth=LOTS)
        except goflat.OutOfMemoryError as error:
            assert error.outputs == [None, None]  # type: ignore[attr-defined]
            flat = goflat.flatten_(features, max_growth=LOTS)
        else:
            raise AssertionError("no error")
    assert_all_bits(list(flat), want)


def test_failures_while_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension, outputs that are done are kept and their entries gone."""
    from goflat import _api

    features = apart([[2, 1, 1], [1, 4, 2]])
    want = answer(features)
    monkeypatch.setattr(_native, "_core", None)
    real, count = _api._engine, [0]

    def fail(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 2:
            raise goflat.OutOfMemoryError("no memory, as a test wants it")
        return real(*args)

    monkeypatch.setattr(_api, "_engine", fail)
    with pytest.raises(goflat.OutOfMemoryError) as caught:
        goflat.flatten_(features, max_growth=LOTS)
    outputs = caught.value.outputs  # type: ignore[attr-defined]
    assert_bits(outputs[0], want[0])
    assert outputs[1:] == [None, None]
    assert all(entries[0] is None and len(entries) == 3 for entries in features.values())
    left = {key: entries[1:] for key, entries in features.items()}
    features.clear()
    assert_all_bits(list(goflat.flatten_(left, max_growth=LOTS)), want[1:])


@native
@pytest.mark.parametrize("name", ["empty", "bridge_SetBase", "bridge_RunStep", "bridge_Changed"])
def test_no_memory_is_handed_out_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that nothing was moved for is its entries: one of them is given up."""
    for number in range(1, 100):
        features = mixed()
        for key in features:
            features[key] += [own((3 * (key == "0"), 3), torch.float32, 1)]  # output 4, unmoved
        want = answer(features)
        with monkeypatch.context() as patch:
            failing(patch, name, number)
            try:
                goflat.flatten_(features, max_growth=LOTS)
            except goflat.OutOfMemoryError as error:
                outputs = error.outputs  # type: ignore[attr-defined]
            else:
                assert number > 1
                return
        left = {
            t.untyped_storage().data_ptr() for ts in features.values() for t in ts if t is not None
        }
        for out, whole in zip(outputs, want, strict=True):
            if out is not None and out.numel():
                assert_bits(out.clone(), whole)
                assert out.untyped_storage().data_ptr() not in left
        assert outputs[4] is None
        assert_bits(features["0"][4].clone(), want[4])
    raise AssertionError("a call went on failing")
