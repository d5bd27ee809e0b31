"""Nothing leaks, nothing is held longer than needed, nothing is counted wrong."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import goflat
from helpers.foreign import Standard
from helpers.jobs import batch_major, numpy_job, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def failing(features: Any, **options: Any) -> None:
    try:
        goflat.flatten(features, **options)
    except goflat.Error:
        return
    raise AssertionError("no error")


def wrong() -> dict[str, list[torch.Tensor]]:
    return ragged() | {"2": [tensor((2, 3)), tensor((2, 4))]}


def calls() -> dict[str, Any]:
    """Return one call of every kind, by name."""
    features, arrays, bad = ragged(), numpy_job(ragged()), wrong()
    outs = [torch.empty(5, 3), torch.empty(7, 3)]
    foreign = {key: [Standard(x) for x in xs] for key, xs in arrays.items()}
    graph = {key: [t.clone().requires_grad_() for t in ts] for key, ts in features.items()}
    return {
        "plain": lambda: goflat.flatten(features),
        "layout": lambda: goflat.flatten(features).layout,
        "batch major": lambda: goflat.flatten(batch_major(features)),
        "packed": lambda: goflat.flatten(features, packed=True),
        "out": lambda: goflat.flatten(features, out=outs),
        "dtype": lambda: goflat.flatten(features, dtype=torch.float64),
        "cat": lambda: goflat.cat(features["0"]),
        "numpy": lambda: goflat.flatten(arrays),
        "foreign": lambda: goflat.flatten(foreign),
        "autograd": lambda: goflat.flatten(graph)[0].sum().backward(),
        "unflatten": lambda: goflat.flatten(features).unflatten(),
        "wrong shape": lambda: failing(bad),
        "wrong entry": lambda: failing({"a": [features["0"][0], None]}),
        "wrong container": lambda: failing({"a": features["0"], "b": 3}),
        "wrong out": lambda: failing(features, out=outs[:1]),
        "overlapping out": lambda: failing(features, out=[outs[0], features["1"][1]]),
    }


@pytest.mark.parametrize("name", calls())
def test_no_leak(name: str) -> None:
    """Repeat a call until 4,000 of them leave memory as it was, which a leak never does.

    A leak of even one small object a call, 64 bytes, adds 256 kB each round. The Go runtime lets
    its heap grow to 4 MB before it collects garbage for the first time.
    """
    call = calls()[name]
    grown = [growth(call, 4_000)]
    while grown[-1] > 200_000:
        assert sum(grown) < 10_000_000, f"grew by {grown} bytes"
        grown.append(growth(call, 4_000))


def growth(call: Any, times: int) -> int:
    """Return by how many bytes the process grows while it calls."""
    gc.collect()
    before = resident_bytes()
    for _ in range(times):
        call()
    gc.collect()
    return resident_bytes() - before


def test_large_outputs_are_freed() -> None:
    features = {"a": [torch.ones(2**20)], "b": [torch.ones(2**20)]}  # 8 MiB out
    goflat.flatten(features)
    before = resident_bytes()
    for _ in range(50):
        goflat.flatten(features, packed=True)
        goflat.flatten(features)
    assert resident_bytes() - before < 100 * 2**20  # 800 MiB have come and gone


def test_reference_counts() -> None:
    features = ragged()
    arrays = numpy_job(features)
    things = [features, arrays, *features.values(), *arrays.values()]
    things += [x for job in (features, arrays) for xs in job.values() for x in xs]
    before = [sys.getrefcount(thing) for thing in things]
    for job in features, arrays:
        result = goflat.flatten(job)
        again = goflat.flatten(batch_major(job), packed=True)
        joined = goflat.cat(job["0"])
        failing(job, dim=7)
        failing(job | {"x": [None, None]})
        # the list, and the argument of getrefcount itself
        assert {sys.getrefcount(result[0]), sys.getrefcount(again[0])} == {2}
        assert sys.getrefcount(joined) == 2
    del job
    gc.collect()
    assert [sys.getrefcount(thing) for thing in things] == before


def test_entries_die_with_the_dict() -> None:
    features = ragged()
    watches = [weakref.ref(t) for ts in features.values() for t in ts]
    flat = goflat.flatten(features)
    flat_too = goflat.flatten(batch_major(features), packed=True)
    del features
    assert not any(watch() is not None for watch in watches)  # by reference count, without gc
    assert len(flat) == len(flat_too)


def test_entries_die_after_an_error_too() -> None:
    features = wrong()
    watch = weakref.ref(features["0"][0])
    failing(features)
    del features
    gc.collect()
    assert watch() is None


def test_outputs_outlive_everything() -> None:
    flat = goflat.flatten({key: [t + 1 for t in ts] for key, ts in ragged().items()}, packed=True)
    want = [t.clone() for t in flat]
    last = flat[1]
    del flat
    gc.collect()
    junk = [torch.full((12, 3), float(i)) for i in range(1000)]
    assert torch.equal(last, want[1])
    assert len(junk) == 1000


def test_packed_numpy_outputs_keep_the_buffer_alive() -> None:
    (output,) = goflat.flatten({"a": [np.arange(3.0)]}, packed=True)
    gc.collect()
    assert output.tolist() == [0, 1, 2]
