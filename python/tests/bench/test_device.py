"""The GPU's part of the benchmarks, on a GPU that there is not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def device(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, which takes the CPU for a GPU that does all at once."""
    device, workloads = (import_module(f"benchmarks.{name}") for name in ("device", "workloads"))
    monkeypatch.setattr(workloads, "DEVICE", "cpu")
    monkeypatch.setattr(device, "FLUSH_BYTES", 16)
    monkeypatch.setattr(device, "replayed", lambda way: way)
    monkeypatch.setattr(device, "cycles_per_s", lambda: 1e9)
    return device


def effort() -> Any:
    return import_module("benchmarks.steps").Effort(1, 1e-4, 0, quick=True)


def test_a_job_and_a_layout_that_changes(device: Any) -> None:
    steps, report = import_module("benchmarks.steps"), import_module("benchmarks.report")
    chosen = device.steps(None, effort())
    assert [step.section for step in chosen] == ["device", "fresh"]
    found, _ = steps.take(chosen, steps.Progress(1))
    (job,) = found["device"]
    for state in ("cold", "warm", "wall"):
        assert job[state].keys() == {
            "goflat", "goflat out=", "goflat bound", "loop", "graph", "foreach copy", "memcpy",
        }  # fmt: skip
    assert job["memory"].keys() == {"goflat", "loop"}
    assert "many small" in report.text(report._gpu(found))


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["seed"], {"seed", "seed, dim 1", "seed, fresh"}),
        (["packing"], {"packing"}),
        (["sweep"], set()),
    ],
)
def test_jobs_by_name(device: Any, only: list[str], names: set[str]) -> None:
    chosen = device.steps(only, effort()._replace(quick=False))
    assert {step.name for step in chosen} == names


def test_a_sample_is_taken_again_if_the_gpu_was_early(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(9.0, True), (1.0, False), (2.0, False)]
    busy = device.Busy(lambda: None)
    monkeypatch.setattr(busy, "_once", lambda _: answers.pop(0))
    assert busy.seconds(None) == 1.0
    assert busy.busy_s == 2 * busy.first_s
    assert (busy.seconds(None), busy.early) == (2.0, 0)


def test_a_gpu_that_is_always_early_takes_no_longer(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, waits = device.Busy(lambda: None), list[float]()

    def once(_: Any) -> tuple[float, bool]:
        waits.append(busy.busy_s / busy.first_s)
        return 5.0, True

    monkeypatch.setattr(busy, "_once", once)
    assert [busy.seconds(None) for _ in range(3)] == [5.0] * 3
    assert waits == [1, 2, 4, 1, 1, 1]
    assert busy.early == 3


def test_slow_ways_have_fewer_samples(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        busy_s = 0.2
        early = 0

        def __init__(self, _: Any) -> None: ...
        def seconds(self, _: Any) -> float:
            return 1.0

    monkeypatch.setattr(device, "Busy", Slow)
    counts = {
        busy_s: device.sample({"a": None, "b": None}, cold=cold)["a"]["samples"]
        for busy_s, cold in ((0.001, True), (0.1, False), (0.2, True), (9.0, False))
        if setattr(Slow, "busy_s", busy_s) is None
    }
    assert counts == {0.001: 15, 0.1: 10, 0.2: 5, 9.0: 5}
