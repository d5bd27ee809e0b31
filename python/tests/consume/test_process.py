"""Consuming calls and their surroundings: environment, processes, threads, compilers."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native
from helpers import child
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    apart,
    consume,
    native,
    parts,
    span,
)
from helpers.jobs import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:BComplex32")


def test_goflat_inplace_0(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("GOFLAT_INPLACE", "0")
    features = parts(ROWS)
    bounds = span(features)
    flat = consume(features)
    assert flat.plan.strategy == "stream"
    assert flat.plan.in_place == 0
    assert flat.plan.growth > 0
    assert all(not bounds[0] <= out.data_ptr() < bounds[1] for out in flat)


def test_goflat_verify(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("GOFLAT_VERIFY", "1")
    for dtype in DTYPES:
        consume(parts(ROWS, (3,), dtype, order=1))
    kept = torch.ones(2, 3)
    consume({"a": [kept, torch.ones(0, 3)], "b": [torch.zeros(1, 3), torch.ones(2, 3)]})
    assert goflat.cat_([np.ones(3), np.zeros(2)], max_growth=LOTS).shape == (5,)
    assert goflat.flatten_({}, max_growth=0) == []


@native
def test_goflat_verify_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAT_VERIFY", "1")
    core: Any = _native._core
    real = core.bridge_RunStep

    def forgets(*args: Any) -> Any:
        return 0

    def tramples(*args: Any) -> Any:
        kept.zero_()
        return real(*args)

    kept = torch.ones(2, 3)
    monkeypatch.setattr(core, "bridge_RunStep", forgets)
    with pytest.raises(goflat.Error, match=r"output 0 is not what torch.cat gives"):
        goflat.flatten_(parts(ROWS, order=1), max_growth=LOTS)
    monkeypatch.setattr(core, "bridge_RunStep", tramples)
    with pytest.raises(
        goflat.Error, match=r"key 'b', batch 0, which is held, has changed|is not what"
    ):
        goflat.flatten_({"a": [torch.ones(2, 3)], "b": [kept]}, max_growth=LOTS)


FORKED = """
import os, traceback, warnings
import torch, goflat
torch.set_num_threads(1)
warnings.filterwarnings("ignore", "goflat runs in pure Python")

def job():
    whole = torch.arange(30.0).reshape(10, 3)
    return {"a": [whole[:2], whole[2:5]], "b": [whole[5:6], whole[6:]]}

def works(strategy):
    for _ in range(5):
        features = job()
        want = [torch.cat([x[b] for x in features.values()]) for b in range(2)]
        flat = goflat.flatten_(features, max_growth=10**6)
        assert features == {}
        assert all(torch.equal(a, b) for a, b in zip(flat, want))
        assert flat.plan.strategy == strategy, flat.plan
        assert goflat.plan(job(), inplace=True).strategy == strategy

works("inplace")
outlived = goflat.flatten_(job(), max_growth=0)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        works("stream")
        assert outlived[0].sum() == 63
        outlived.clear()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
works("inplace")
"""


@native
def test_a_forked_child_streams() -> None:
    assert child.fork(FORKED, engine="native") == ""


@native
def test_at_exit_outputs_may_be_anywhere() -> None:
    code = """
    import sys, torch, goflat
    whole = torch.arange(30.0).reshape(10, 3)
    features = {"a": [whole[:2], whole[2:5]], "b": [whole[5:6], whole[6:]]}
    flat = goflat.flatten_(features, max_growth=10**6)
    views = list(whole.split(5)); del whole
    goflat.kept = goflat.cat_(views, max_growth=0)
    cycle = [flat]; cycle.append(cycle)
    sys.modules["kept"] = flat[1]
    """
    child.run(code, engine="native")


def test_8_threads_on_jobs_of_their_own() -> None:
    start = threading.Barrier(8)

    def work(number: int) -> None:
        rng = random.Random(number)
        start.wait()
        for i in range(40):
            rows = [[rng.randrange(6) for _ in range(3)] for _ in range(4)]
            make = parts if i % 2 else apart
            consume(make(rows, (rng.randrange(1, 5),)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.parametrize("name", ["inplace", "apart", "numpy", "cat", "limit", "leaf", "plan"])
def test_no_leak(name: str) -> None:
    """Repeat a call until thousands of them leave memory as it was: see test_lifetime."""
    from test_lifetime import growth

    def refused(call: Callable[[], Any]) -> None:
        try:
            call()
        except goflat.Error:
            return
        raise AssertionError("no error")

    leaf = torch.ones(2, 3, requires_grad=True)
    calls: dict[str, Callable[[], Any]] = {
        "inplace": lambda: goflat.flatten_(parts(ROWS), max_growth=LOTS),
        "apart": lambda: goflat.flatten_(apart(((1, 2), (2, 1))), max_growth=LOTS),
        "numpy": lambda: goflat.flatten_({"a": [np.ones(3), np.ones(2)]}, max_growth=LOTS),
        "cat": lambda: goflat.cat_(list(torch.ones(4, 2).split(1)), max_growth=LOTS),
        "limit": lambda: refused(lambda: goflat.flatten_(apart(((1, 2), (2, 1))), max_growth=0)),
        "leaf": lambda: refused(lambda: goflat.flatten_({"a": [leaf]}, max_growth=0)),
        "plan": lambda: goflat.plan(parts(ROWS), inplace=True),
    }
    grown = [growth(calls[name], 1_000)]
    while grown[-1] > 50_000:
        assert sum(grown) < 12_000_000, f"grew by {grown} bytes"
        grown.append(growth(calls[name], 1_000))


# Compilers and tracers


def test_torch_compile() -> None:
    def step(x: Tensor, y: Tensor) -> Any:
        features = {"a": [x * 2, x + 1], "b": [y * 3, y]}
        flat = goflat.flatten_(features, max_growth=LOTS)
        return flat[0] + 1, flat[1], len(features)

    x, y = torch.rand(2, 3), torch.rand(1, 3)
    compiled: Any = torch.compile(step, backend="eager")
    got, want = compiled(x, y), step(x, y)
    assert_all_bits(list(got[:2]), list(want[:2]))
    assert got[2] == want[2] == 0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_jit_trace() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        return goflat.cat_([x * 2, y * 3], max_growth=LOTS) + 1

    x, y = torch.rand(2, 3), torch.rand(1, 3)
    traced = torch.jit.trace(step, (x, y))
    again = torch.rand(2, 3), torch.rand(1, 3)
    assert_bits(traced(*again), step(*again))
