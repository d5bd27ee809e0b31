"""plan(): numbers that come true, ranges, reasons, and no reference to an entry."""

from __future__ import annotations

import gc
import json
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native
from helpers.compare import assert_all_bits
from helpers.consuming import apart, live, own, parts
from helpers.jobs import numpy_job, oracle

if TYPE_CHECKING:
    from collections.abc import Callable

LOTS = 1 << 40
ROWS = ((2, 1), (0, 4), (3, 2))
native = pytest.mark.skipif(not _native.available(), reason="no extension")

MAKERS: dict[str, Callable[[], Any]] = {
    "parts": lambda: parts(ROWS),
    "shuffled": lambda: parts(ROWS, order=1),
    "with gaps": lambda: parts(ROWS, order=1, gap=2),
    "apart": lambda: apart(ROWS),
    "mixed": lambda: parts(ROWS, order=1) | {"x": [own((4, 3), torch.float32, 1) for _ in "ab"]},
    "numpy": lambda: numpy_job(apart(ROWS)),
    "empty": lambda: {},
    "no rows": lambda: apart(((0, 0), (0, 0))),
}


# flatten


def test_a_copy_costs_its_outputs() -> None:
    features = apart(ROWS)
    made = goflat.plan(features)
    assert (made.strategy, made.nbytes, made.growth, made.peak) == ("copy", 144, 144, 288)
    assert (made.tables, made.in_place, made.moved_rows) == (0, 0, 12)
    assert goflat.plan(features, dtype=torch.float64).growth == 288  # converted into their place
    assert goflat.plan(features, dtype=torch.int64).growth == 288 + 288
    assert goflat.plan(features, packed=True).growth == 144
    assert made.why("0", 0) == "copied: flatten leaves its entries as they are"
    assert goflat.flatten(features).plan.to_dict() == made.to_dict()
    assert goflat.plan(goflat.Layout.of(features)).to_dict() == made.to_dict()


def test_a_copy_is_run_by_its_plan() -> None:
    features = apart(ROWS)
    made = goflat.plan(features)
    assert_all_bits(list(made(features)), oracle(features))
    outs = [torch.empty(5, 3), torch.empty(7, 3)]
    flat = made(features, outs)
    assert all(a is b for a, b in zip(flat, outs, strict=True))
    assert_all_bits(outs, oracle(features))
    assert goflat.plan(features, packed=True)(features).buffer is not None
    double = goflat.plan(features, dtype=torch.float64)(features)
    assert_all_bits(list(double), [t.double() for t in oracle(features)])
    with pytest.raises(goflat.ShapeError):
        made(apart(((2, 1), (0, 4), (3, 3))))
    with pytest.raises(goflat.MemoryLimitError, match="a growth of 144 bytes"):
        goflat.plan(features, max_growth=143)
    assert goflat.plan(features, max_growth=144).growth == 144


def test_errors_are_those_of_flatten() -> None:
    for inplace in (False, True):
        with pytest.raises(goflat.ShapeError, match=r"key 'b', batch 0: got \(2, 4\)"):
            goflat.plan({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 4)]}, inplace=inplace)
        with pytest.raises(goflat.DTypeError):
            goflat.plan({"a": [1]}, inplace=inplace)
    leaf = torch.ones(2, requires_grad=True)
    assert goflat.plan({"a": [leaf]}).growth == 8
    with pytest.raises(goflat.OwnershipError, match="a leaf"):
        goflat.plan({"a": [leaf]}, inplace=True)
    for options in ({"dim": 1}, {"dtype": torch.int8}, {"packed": True}):
        with pytest.raises(goflat.DTypeError, match="none of them"):
            goflat.plan(apart(ROWS), inplace=True, **options)


def test_a_plan_is_made_when_it_is_asked_for() -> None:
    features = apart(ROWS)
    features["0"][0] = features["0"][0].double()
    for options in ({}, {"dtype": torch.float64}, {"dtype": torch.float64, "packed": True}):
        flat = goflat.flatten(features if options else apart(ROWS), **options)  # type: ignore[call-overload]
        assert not hasattr(flat, "_plan")
        made = goflat.plan(features if options else apart(ROWS), **options)
        assert flat.plan.to_dict() == made.to_dict()
        assert flat.plan is flat.plan


# flatten_


@pytest.mark.parametrize("name", MAKERS)
def test_plans_of_consuming_calls(name: str) -> None:
    features = MAKERS[name]()
    made = goflat.plan(features, inplace=True)
    layout = made.layout
    assert isinstance(made.growth, int)
    assert made.peak == made.nbytes + made.growth
    ranges = goflat.plan(layout, inplace=True)
    assert ranges.growth[0] <= made.growth <= ranges.growth[1]  # type: ignore[index]
    assert ranges.peak == tuple(n + made.nbytes for n in ranges.growth)  # type: ignore[union-attr]
    assert made.reserved_growth <= ranges.reserved_growth[1]  # type: ignore[index, operator]
    with pytest.raises(goflat.MemoryLimitError):
        goflat.plan(features, inplace=True, max_growth=made.growth - 1)
    assert goflat.plan(features, inplace=True, max_growth=made.growth).growth == made.growth
    flat = goflat.flatten_(features, max_growth=made.growth)
    assert flat.plan.to_dict() == made.to_dict()


@pytest.mark.parametrize("name", MAKERS)
def test_a_plan_says_all_as_text_and_json(name: str) -> None:
    features = MAKERS[name]()
    for inplace in (False, True):
        made = goflat.plan(features, inplace=inplace)
        said = json.loads(json.dumps(made.to_dict()))
        assert said["growth"] == made.growth
        assert {"strategy", "nbytes", "peak", "tables", "reserved_growth", "copied"} <= set(said)
        headline, *lines = str(made).splitlines()
        assert headline.startswith(f"{len(made.layout.keys) * made.layout.batches} entries, ")
        assert all(line.startswith("  ") for line in lines)
        assert repr(made) == f"Plan({headline})"
        assert made.strategy in headline
    json.dumps(goflat.plan(made.layout, inplace=True).to_dict())


def test_a_plan_is_run_by_a_call() -> None:
    for make in (lambda: parts(ROWS, order=1), lambda: apart(ROWS)):
        features = make()
        want = list(goflat.flatten(features))
        made = goflat.plan(features, inplace=True)
        with pytest.raises(goflat.DTypeError, match="none: outputs lie in place"):
            made(features, out=want)
        assert_all_bits(list(made(features)), want)  # no warning: the plan has said it
        assert features == {}
    with pytest.raises(goflat.ShapeError):
        made(apart(((1, 1),)))
    nothing: dict[str, Any] = {}
    assert goflat.plan(nothing, inplace=True)(nothing) == []
    rough = goflat.plan(goflat.Layout.of(apart(ROWS)), inplace=True)
    assert_all_bits(list(rough(apart(ROWS))), want)


@native
def test_a_plan_is_checked_again() -> None:
    features = parts(ROWS, order=1)
    want = list(goflat.flatten(features))
    made = goflat.plan(features, inplace=True)
    kept = features["2"][0]
    before = kept.clone()
    with pytest.raises(goflat.MemoryLimitError, match="the variable 'kept' of test_a_plan_is_ch"):
        made(features)
    assert torch.equal(kept, before)
    del kept
    assert_all_bits(list(made(features)), want)


def test_a_plan_holds_no_entry() -> None:
    for name in ("parts", "apart", "mixed"):
        features = MAKERS[name]()
        held = features["0"][0]
        watches = [weakref.ref(t) for entries in features.values() for t in entries]
        plans = [goflat.plan(features, inplace=True), goflat.plan(features)]
        str(plans[0]), repr(plans[1])
        del held
        features.clear()
        assert [watch() for watch in watches] == [None] * len(watches), name  # without gc
        assert len(plans) == 2
    assert live() == (0, 0, 0)


def test_a_plan_changes_nothing() -> None:
    features = parts(ROWS, order=1)
    before = {key: [(id(t), t.clone()) for t in entries] for key, entries in features.items()}
    for _ in range(3):
        goflat.plan(features, inplace=True)
    for key, entries in features.items():
        assert [id(t) for t in entries] == [at for at, _ in before[key]]
        assert_all_bits([t.clone() for t in entries], [t for _, t in before[key]])
    gc.collect()
    assert live() == (0, 0, 0)


# why


def test_why_takes_keys_and_batches_of_the_layout() -> None:
    made = goflat.plan(apart(ROWS), inplace=True)
    assert made.why("0", -1) == made.why("0", 1)
    with pytest.raises(KeyError):
        made.why("x", 0)
    for batch in (2, -3):
        with pytest.raises(IndexError):
            made.why("0", batch)


@native
def test_reasons() -> None:
    def why(entry: Any) -> str:
        return goflat.plan({"a": [entry]}, inplace=True).why("a", 0)

    assert "the variable 'entry' of why() at test_plan.py" in why(own((4, 3), torch.float32, 1))
    turned = {"a": [own((4, 3), torch.float32, 1).t()]}
    assert "row after row" in goflat.plan(turned, inplace=True).why("a", 0)
    foreign = {"a": [torch.from_numpy(np.ones(3))]}
    assert "NumPy" in goflat.plan(foreign, inplace=True).why("a", 0)
    whole = own((4, 3), torch.float32, 1)
    overlap = {"a": [whole[:3]], "b": [whole[1:]]}
    del whole
    assert goflat.plan(overlap, inplace=True).why("b", 0) == (
        "copied: it shares bytes with another entry"
    )
    views = parts(ROWS)
    assert goflat.plan(views, inplace=True).why("0", 0) == "adopted: nobody else refers to it"
    assert goflat.plan(apart(ROWS), inplace=True).why("0", 0).startswith("given up after")
    cut = tuple(own((4, 3), torch.float32, 1).split(2))
    assert goflat.plan({"a": cut}, inplace=True).why("a", 0) == "copied: they are in a tuple"
    mine = list(cut)
    del cut
    assert "the list of key 'a' is held" in goflat.plan({"a": mine}, inplace=True).why("a", 0)


@native
def test_lines_name_spills_and_their_cure() -> None:
    text = str(goflat.plan(apart(ROWS), inplace=True))
    assert "0 of 2 outputs in place" in text
    assert "spill: batch 0, 60 B: entries lie in " in text
    assert "entries are given up" in text


@native
def test_goflat_inplace_0_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAT_INPLACE", "0")
    assert "GOFLAT_INPLACE=0 forbids" in str(goflat.plan(parts(ROWS), inplace=True))


def test_in_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_core", None)
    features = apart(ROWS)
    made = goflat.plan(features, inplace=True)
    assert made.strategy == "stream"
    assert made.growth == 84
    held = features["0"][1]
    assert goflat.plan(features, inplace=True).why("0", 1) == "copied: somebody else refers to it"
    assert held is features["0"][1]
