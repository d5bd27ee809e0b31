"""The GPU's part of the benchmarks runs; no assertion looks at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[3]


def test_jobs_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "python"))
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    from benchmarks import __main__ as bench
    from benchmarks import device

    monkeypatch.setattr(device, "LONGEST_S", 0)
    monkeypatch.setattr(device, "LEAST_SAMPLES", 2)
    file = tmp_path / "run.json"
    only = [part for name in ("seed", "many small", "packing") for part in ("--only", name)]
    quick = ["--imports", "0", "--rounds", "1", "--block", "1e-4"]
    assert bench.main(["--device", "cuda", *only, *quick, "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    assert {job["name"] for job in run["device"]} >= {"seed", "seed, dim 1", "packing"}
    for job in run["device"]:
        assert job["memory"]["goflat"]["requested_bytes"] == job["bytes"]
        for state in ("cold", "warm", "wall"):
            assert {"goflat", "goflat out=", "loop", "graph", "memcpy"} <= job[state].keys()
    text = capsys.readouterr().out
    assert "device / memcpy, seed" in text
    assert "goals met" in text


def test_everything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "python"))
    from benchmarks import __main__ as bench

    file = tmp_path / "run.json"
    assert bench.main(["--device", "cuda", "--quick", "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    sections = {"cases", "device", "fresh", "sweep", "allocations", "timers"}
    assert sections <= run.keys()
    assert run["machine"]["gpu"]["name"]
    (job,) = run["timers"]
    assert job["device"].keys() == {"goflat", "loop", "copy"}
