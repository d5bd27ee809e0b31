"""The benchmarks run and compare what is the same; no assertion looks at a time."""

from __future__ import annotations

import json
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import goflat
from goflat import __main__

QUICK = ("--rounds", "1", "--block", "1e-4")


@pytest.fixture(autouse=True)
def _in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(str(goflat.__file__)).parents[1]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("bench") / "run.json"
    names = ("--only", "tiny", "--only", "square", "--imports", "1")
    assert __main__.main(["bench", *names, *QUICK, "--json", str(file)]) == 0
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def test_a_run_as_json(run: dict[str, Any]) -> None:
    assert [case["name"] for case in run["cases"]] == ["square", "tiny"]
    assert len(run["extras"]) == 2
    assert run["command"].startswith("python -m goflat bench --only tiny")
    assert {"cpu", "cores", "threads", "versions"} <= run["machine"].keys()
    for case in run["cases"]:
        assert len(case["ways"]) == 9
        assert {"median_s", "iqr_s", "samples"} == case["ways"]["goflat"].keys()
        for contract, ratio in case["ratios"].items():
            own = {"new": "goflat", "packed": "goflat packed", "given": "goflat out="}[contract]
            medians = {name: way["median_s"] for name, way in case["ways"].items()}
            assert ratio["ratio"] == pytest.approx(medians[ratio["best"]] / medians[own])


def test_a_run_as_text(run: dict[str, Any]) -> None:
    text = import_module("benchmarks.report").table(run)
    assert text.count("8x8x(4,64) torch") == 3
    assert "import goflat, after torch" in text


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_all_ways_of_a_ragged_job_agree(library: str) -> None:
    cases, measure = import_module("benchmarks.cases"), import_module("benchmarks.measure")
    case = cases.Case("small", 3, 2, (2, 5), library)
    features = case.features()
    features["1"] = [entry[:1] for entry in features["1"]]
    runs = measure.ways(library, features)
    measure._check(runs)
    runs["zip"] = lambda: [out * 2 for out in runs["loop"]()]
    with pytest.raises(AssertionError, match="zip gives other values"):
        measure._check(runs)


def test_the_worst_cases_are_there() -> None:
    cases = {case.title for case in import_module("benchmarks.cases").CASES}
    assert {"4x4x(50,256,7,7) torch", "2x1x(4,64) torch", "30000x1x(2,16) numpy"} <= cases


# ---- compare ----


def faster(run: dict[str, Any], factor: float, which: str) -> dict[str, Any]:
    """Return the run with some times divided by `factor` and no spread."""
    other = deepcopy(run)
    for case in other["cases"]:
        for name, way in case["ways"].items():
            way["median_s"] /= factor if which in name else 1
            way["iqr_s"] = 0
    return other


@pytest.mark.parametrize(
    ("factor", "which", "verdict"),
    [(2, "goflat", "faster"), (0.5, "goflat", "slower"), (2, "", "as fast")],
)
def test_compare_looks_at_ratios(
    run: dict[str, Any], factor: float, which: str, verdict: str
) -> None:
    before = faster(run, 1, "")
    text = import_module("benchmarks.report").compare(before, faster(before, factor, which))
    assert text.count(verdict) == 6


def test_compare_reads_files_and_names_differences(
    run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = deepcopy(run)
    other["machine"]["cpu"] = "another one"
    other["load"]["before"] = 3.0
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, content in zip(files, (run, other), strict=True):
        file.write_text(json.dumps(content))
    assert __main__.main(["bench", "compare", *map(str, files)]) == 0
    text = capsys.readouterr().out
    assert "cpu differ" in text
    assert "Busy machine (load per core 3.0)" in text
