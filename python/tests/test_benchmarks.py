"""The benchmarks run and compare what is the same; no assertion looks at a time."""

from __future__ import annotations

import gc
import json
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import __main__

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        assert {"loop", "zip", "split", "cat out=", "foreach copy", "copy"} <= case["ways"].keys()
        assert {"median_s", "iqr_s", "samples"} == case["ways"]["goflat"].keys()
        for contract, ratio in case["ratios"].items():
            own = import_module("benchmarks.ways").CONTRACTS[contract].own
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


def test_goals_are_judged() -> None:
    def ways(**seconds: float) -> dict[str, Any]:
        return {name.replace("_", " "): {"median_s": s} for name, s in seconds.items()}

    run = {
        "device": [
            {"name": "seed", "cold": ways(goflat=1.05, memcpy=1.0)},
            {"name": "short rows", "cold": ways(goflat=1.2, memcpy=1.0)},
            {"name": "uniform", "skipped": "too large"},
            {"name": "anchors", "cold": ways(goflat=9.0, memcpy=1.0)},  # nothing is wanted of it
        ],
        "cases": [
            {"name": "seed", "ratios": {"separate": {"ratio": 1.6}, "packed": {"ratio": 0.5}}}
        ],
        "extras": [{"name": "goflat minus loop, tiny", "seconds": 2e-6}],
        "fresh": [{"name": "seed, fresh", "ways": ways(goflat=1.0, goflat_fresh=1.1)}],
    }
    found = import_module("benchmarks.goals").goals(run)
    assert {goal["name"]: goal["met"] for goal in found} == {
        "device / memcpy, seed": True,
        "device / memcpy, short rows": False,
        "wall, separate, seed": True,
        "wall, packed, seed": False,
        "goflat minus loop, tiny, µs": False,
        "seed, fresh, over the same layout": True,
    }
    assert "3 of 6 goals met" in import_module("benchmarks.report")._goals(found)


def test_goals_name_jobs_that_there_are() -> None:
    cases = {case.name for case in import_module("benchmarks.cases").CASES}
    jobs = {job.name for job in import_module("benchmarks.workloads").JOBS}
    goals = import_module("benchmarks.goals")
    assert goals.DEVICE.keys() <= jobs
    assert all(wants.keys() <= cases for of in goals.WALL.values() for wants in of.values())


def test_boxes_and_sequences_add_up() -> None:
    workloads = import_module("benchmarks.workloads")
    assert sum(workloads.levels(1000, 0)) == 1000
    assert min(workloads.levels(1000, 0)) > 0
    slots = workloads.sequences(100, 50, 400)
    assert sum(n > 0 for slot in slots for n in slot) == 100
    assert all(0 < sum(batch) <= 400 for batch in zip(*slots, strict=True))


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
    after = faster(before, factor, which)
    text, slower = import_module("benchmarks.report").compare(before, after)
    assert slower == (verdict == "slower")
    assert text.count(verdict) == sum(len(case["ratios"]) for case in run["cases"])


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


# ---- memory ----


class Event:
    """Of a device that takes no time."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...
    def synchronize(self) -> None: ...

    def elapsed_time(self, _: Event) -> float:
        return 1.0


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a setup for a GPU where there is none: memory never grows, all is done at once."""
    answers = {
        "_sleep": None,
        "empty_cache": None,
        "mem_get_info": (1 << 40, 1 << 40),
        "memory_reserved": 0,
        "memory_stats": {},
        "reset_peak_memory_stats": None,
        "set_per_process_memory_fraction": None,
        "synchronize": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clocks = import_module("benchmarks.memory.clocks")
    monkeypatch.setattr(clocks, "FLUSH_BYTES", 16)
    setup = import_module("benchmarks.memory.setup")
    gc.freeze()  # so that collections, of which there are many, are quick
    yield type("Pretended", (setup.Setup,), {"cuda": True})(samples=2, seeds=6, shrink=1000)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("growth", 60),
        ("timelines", 12),
        ("inplace", 14),
        ("prediction", 1),
        ("collect", 9),
        ("cap", 4),
        ("ownership", 6),
    ],
)
def test_a_part_of_memory_as_on_a_gpu(part: str, count: int, pretended: Any) -> None:
    parts, report = (import_module(f"benchmarks.memory.{name}") for name in ("parts", "report"))
    records = list(parts.records(part, pretended))
    found = {"seconds": 1.0, "records": json.loads(json.dumps(records))}
    assert report.errors({part: found}) == []
    assert len(records) == count
    text = report.part(part, found)
    for record in records:
        for goal in record.get("goals", ()):
            assert goal["met"] == (goal["value"] <= goal["limit"])
            assert goal["name"] in text


def test_memory_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    options = ("--only", "ownership", "--only", "cap", "--samples", "2")
    assert __main__.main(["bench", "--memory", *options, "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    assert run["command"].endswith("--device cpu --only ownership --only cap --samples 2")
    assert {"cpu", "versions"} <= run["machine"].keys()
    assert [record["kind"] for record in run["parts"]["ownership"]["records"]] == (
        ["survey"] * 2 + ["plan"] * 4
    )
    assert run["parts"]["cap"]["skipped"] == "nothing to measure on cpu"
    text = capsys.readouterr().out
    assert "survey of split views, an entry" in text
    assert "of 2 goals met" in text


@pytest.mark.parametrize("part", ["growth", "timelines", "inplace"])
def test_a_part_of_memory_on_a_cpu(part: str) -> None:
    parts, setup = (import_module(f"benchmarks.memory.{name}") for name in ("parts", "setup"))
    records = list(parts.records(part, setup.Setup(samples=2, seeds=1, shrink=250)))
    report = import_module("benchmarks.memory.report")
    assert report.errors({part: {"records": records}}) == []
    assert records


def test_what_fails_in_memory_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts, setup, run = (
        import_module(f"benchmarks.memory.{name}") for name in ("parts", "setup", "run")
    )

    def broken(_: Any) -> Any:
        yield setup.Item({"job": "a"}, lambda: {"ns": 1 // 0})
        yield setup.Item({"job": "b"}, dict)

    monkeypatch.setitem(parts.PARTS, "cap", broken)
    first, second = parts.records("cap", setup.Setup())
    assert first["error"].startswith("ZeroDivisionError")
    assert "error" not in second
    records, error = parts._process("no part", setup.Setup())
    assert records == []
    assert "KeyError: 'no part'" in error
    ended = {"seconds": 1.0, "records": [{"job": "a", **first}], "error": error}
    monkeypatch.setattr(run, "run", lambda *_: ended)
    assert run.main(["--only", "cap", "--json", str(tmp_path / "memory.json")]) == 1


def test_a_record_comes_without_references_to_what_it_measured() -> None:
    jobs = import_module("benchmarks.memory.jobs")
    for make in jobs.MAKERS.values():
        features = make([[1, 2], [3, 1]], (2, 3, 3), "cpu")
        plan = goflat.plan(features, inplace=True)
        assert plan.to_dict()["copied"] == []
