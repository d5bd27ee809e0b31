"""The benchmarks of memory run; no assertion looks at a time."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

import goflat
from goflat import __main__

if TYPE_CHECKING:
    from pathlib import Path


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
