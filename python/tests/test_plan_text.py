"""What plans say to people."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import goflat
from goflat import _native
from goflat._plan import Plan
from helpers.consuming import apart, own, parts
from helpers.jobs import numpy_job

ROWS = ((2, 1), (0, 4), (3, 2))
native = pytest.mark.skipif(not _native.available(), reason="no extension")


def consuming(features: Any) -> str:
    return str(goflat.plan(features, inplace=True))


def on_a_gpu(layout: goflat.Layout) -> goflat.Layout:
    names = ("keys", "batches", "rows", "row_shape", "dtype", "dim")
    same = {name: getattr(layout, name) for name in names}
    return goflat.Layout(devices=(torch.device("cuda", 0),) * layout.batches, **same)


# The headline


@native
def test_the_headline_of_a_cpu() -> None:
    assert consuming(parts(ROWS)).splitlines()[0] == (
        "6 entries, 144 B on cpu: inplace, 2 of 2 outputs in place, growth 0 B, peak 144 B, "
        "67 % of the rows move"
    )
    assert str(goflat.plan(apart(ROWS))) == (
        "6 entries, 144 B on cpu: copy, 0 of 2 outputs in place, growth 144 B, peak 288 B, "
        "100 % of the rows move"
    )
    assert consuming({}) == (
        "0 entries, 0 B on no device: inplace, 0 of 0 outputs in place, growth 0 B, peak 0 B, "
        "none of the rows move"
    )


def test_the_headline_of_a_gpu_says_what_is_reserved_and_what_tables_take() -> None:
    layout = on_a_gpu(goflat.Layout.of(apart(ROWS)))
    made = Plan(layout, "inplace", 3000, reserved_growth=2 << 20, tables=600, in_place=1)
    assert str(made) == (
        "6 entries, 144 B on cuda:0: inplace, 1 of 2 outputs in place, growth 3.0 kB, "
        "peak 3.1 kB, reserved growth up to 2.1 MB, tables 600 B, 100 % of the rows move"
    )
    made = Plan(layout, "inplace", 0, reserved_growth=0)
    assert ", reserved growth 0 B, tables 0 B, " in str(made)


@native
def test_a_cpu_has_no_tables() -> None:
    ragged = parts([[n % 7 for n in range(b, 40 + b)] for b in range(30)], (1,), order=3)
    assert goflat.plan(ragged, inplace=True).tables == 0
    assert "tables" not in consuming(ragged)


def test_the_headline_of_a_layout_is_a_range_in_words() -> None:
    layout = goflat.Layout.of(apart(ROWS))
    assert consuming(layout) == (
        "6 entries, 144 B on cpu: growth 0 B at best, with all 2 outputs in place, "
        "144 B at worst, with none, peak 144 B to 288 B"
    )
    assert consuming(goflat.Layout.of({"a": [torch.ones(0, 3)]})) == (
        "1 entries, 0 B on cpu: growth 0 B at best, with all 1 outputs in place, peak 0 B to 0 B"
    )


# Why a job is streamed


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def lines(features: Any) -> list[str]:
    made = goflat.plan(features, inplace=True)
    assert made.strategy == "stream"
    said = [line.strip() for line in str(made).splitlines() if line.startswith("  stream: ")]
    flat = goflat.flatten_(features, max_growth=made.growth)  # type: ignore[arg-type]
    assert str(flat.plan) == str(made)
    return said


@native
def test_results_that_autograd_knows_are_planned_like_any() -> None:
    def features() -> dict[str, list[torch.Tensor]]:
        leaf = torch.ones(2, 3, requires_grad=True)
        return {"a": [torch.ones(1, 3), leaf * 2], "b": [torch.ones(1, 3), leaf * 3]}

    job = features()
    with torch.no_grad():
        want = lines(job)
    assert lines(features()) == want
    assert not any(line.startswith("stream: ") for line in want)


def test_streamed_for_numpy() -> None:
    assert lines(numpy_job(apart(ROWS))) == [
        "stream: only torch tells who uses the memory of an array; pass tensors, or write to an "
        "Arena"
    ]


@native
def test_streamed_for_what_is_no_plain_tensor() -> None:
    odd = torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)
    assert lines({"a": [torch.ones(1, 3)], "b": [odd]}) == [
        "stream: key 'b', batch 0 is more than a plain tensor; plain ones may be written over"
    ]
    conjugated = torch.ones(2, 3, dtype=torch.complex64).conj()
    assert "key 'a', batch 0 is more than a plain tensor" in lines({"a": [conjugated]})[0]


@native
def test_streamed_for_a_mode() -> None:
    with Watching():
        (line,) = lines(apart(ROWS))
    assert "dispatch mode" in line
    assert line.endswith("call outside of it")


def test_streamed_in_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_core", None)
    monkeypatch.setattr(_native, "reason", "no such file")
    assert lines(apart(ROWS)) == ["stream: goflat runs in pure Python: no such file"]


# cat_ counts tensors


@native
def test_cat_speaks_of_tensors() -> None:
    kept = own((2, 3), torch.float32, 1)
    tensors = [own((1, 3), torch.float32, 2), kept, own((1, 3), torch.float32, 3)]
    with pytest.raises(goflat.MemoryLimitError) as raised:
        goflat.cat_(tensors, max_growth=0)
    text = str(raised.value)
    assert "copied: tensor 1: held by the variable 'kept' of test_cat_speaks_of" in text
    assert "spill: the output, 48 B" in text
    assert "key" not in text
    assert "batch" not in text
    with pytest.warns(goflat.GrowthWarning, match="copied: tensor 1: held by the variable 'kept'"):
        goflat.cat_(tensors)


@native
def test_cat_names_the_tensor_that_is_streamed(recwarn: pytest.WarningsRecorder) -> None:
    goflat.cat_([torch.ones(2), torch.nn.Parameter(torch.ones(2), requires_grad=False)])
    assert "stream: tensor 1 is more than" in str(recwarn.pop(goflat.GrowthWarning).message)


# Errors of why()


def test_why_says_what_there_is() -> None:
    made = goflat.plan(apart(ROWS), inplace=True)
    with pytest.raises(KeyError, match="there is no key 'x'; there are '0', '1', '2'"):
        made.why("x", 0)
    for batch in (2, -3, 1 << 70):
        with pytest.raises(IndexError, match=f"no batch {batch}; there are 0 to 1, or -2 to -1"):
            made.why("0", batch)
    for wrong in (slice(1), "0", 1.0, None):
        with pytest.raises(TypeError):
            made.why("0", wrong)  # type: ignore[arg-type]
    many = goflat.plan({n: [torch.ones(1)] for n in range(100)})
    with pytest.raises(KeyError, match=r"there are 0, 1, 2, 3, 4, 5, 6, 7, \.\.\."):
        many.why(100, 0)
    with pytest.raises(KeyError, match="there are none"):
        goflat.plan({}).why("a", 0)
    assert made.why("0", np.int64(1)) == made.why("0", 1)  # type: ignore[arg-type]


# Copies


@pytest.mark.parametrize("copied", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy])
def test_a_plan_can_be_copied(copied: Any) -> None:
    kept = own((2, 3), torch.float32, 1)
    for features in ({"a": [kept, own((1, 3), torch.float32, 2)]}, parts(ROWS)):
        made = goflat.plan(features, inplace=True)
        assert str(copied(made)) == str(made)
        assert copied(made).to_dict() == made.to_dict()
    assert kept.shape == (2, 3)
