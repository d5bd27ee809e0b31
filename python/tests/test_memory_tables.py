"""The tables of docs/memory.md, from a run that is known."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "memory.md"


def module() -> Any:
    path = ROOT / "tools" / "memory_tables.py"
    spec: Any = importlib.util.spec_from_file_location("memory_tables", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


tables = module()


def run(**parts: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {"torch": "2.11.0", "goflat": "0.1.0"}
    gpu = {"name": "NVIDIA H200", "driver": "580.1"}
    machine = {"date": "2026-11-30T12:00:00", "gpu": gpu, "versions": versions}
    records = {name: {"records": found} for name, found in parts.items()}
    return {"command": "python -m goflat bench", "machine": machine, "parts": records}


def times(seconds: float) -> dict[str, Any]:
    return {"median_s": seconds, "iqr_s": 0.0, "samples": 3}


def way(title: str, job: str, peak: float, worst: float, **more: Any) -> dict[str, Any]:
    record = {"kind": "ways", "mode": "default", "title": title, "job": job, "time": times(2e-3)}
    return {**record, "peak": peak, "worst_peak": worst, **more}


def spread(job: str, lies: str, mode: str, zero: float, spilled: float) -> dict[str, Any]:
    facts = {"kind": "spread", "job": job, "lies": lies, "mode": mode}
    return {**facts, "zero": zero, "spilled": spilled}


TIMED = {
    "job": "seed job",
    "lies": "plain",
    "bytes": 40_140_800,
    "growth": {"requested": 0, "allocated": 0},
    "tables": 1_500,
    "states": {"cold": {"ratio": 0.851}, "warm": {"ratio": 0.5}},
    "plan": times(12e-6),
}
CASES: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "ways": (
        "growth",
        [
            way("torch.cat", "seed job", 2.0, 2.0),
            way("torch.cat", "ragged", 1.9, 1.95),
            way("flatten_", "seed job", 1.0, 1.0, time=times(5e-5)),
            way("flatten_", "seed job", 9.0, 9.0, mode="expandable_segments"),
            {"kind": "ways", "mode": "default", "job": "ragged", "error": "it broke"},
        ],
        [
            "| way | peak, seed job | peak, ragged | time, seed job |",
            "| --- | --- | --- | --- |",
            "| torch.cat | 2.00 | 1.90, at worst 1.95 | 2.0 ms |",
            "| flatten_ | 1.00 |  | 50 µs |",
        ],
    ),
    "spread": (
        "growth",
        [
            spread("rows 1..100", "plain", "default", 0.02, 0.8),
            spread("rows 1..100", "plain", "expandable_segments", 0.5, 0.07),
            spread("rows 1..100", "collected", "default", 1.0, 0.0),
        ],
        [
            "| job | one by one | one by one, expandable_segments | inside collect() |",
            "| --- | --- | --- | --- |",
            "| rows 1..100 | 2 %, 80 % of bytes anew | 50 %, 7 % of bytes anew "
            "| 100 %, 0 % of bytes anew |",
        ],
    ),
    "cap": (
        "cap",
        [
            {"way": "torch.cat", "succeeded": False, "why": "OutOfMemoryError: CUDA out of memory"},
            {"way": "cat_", "succeeded": True, "growth": {"requested": 0}, "seconds": 0.0123},
        ],
        [
            "| way | result | growth | time |",
            "| --- | --- | --- | --- |",
            "| torch.cat | OutOfMemoryError |  |  |",
            "| cat_ | works | 0 B | 12.3 ms |",
        ],
    ),
    "collect": (
        "collect",
        [
            {"kind": "besides", "job": "j", "lies": "split", "tables": 2_000, "taken": 0},
            {"kind": "producers", "job": "j", "way": "w", "ratio": 1.01, "first_extra_us": 71.4},
            {"kind": "growth", "draws": 200, "zero": {"requested": 200}},
        ],
        [
            "| producers | time inside / outside | first context, per 64 MiB |",
            "| --- | --- | --- |",
            "| j, w | 1.01 | 71 µs |",
            "",
            "| joined | tables, as planned | taken from the device besides torch's |",
            "| --- | --- | --- |",
            "| j, split | 2.0 kB | 0 B |",
            "",
            "Of 200 random jobs, made with temporaries, 200 grew by 0 B.",
        ],
    ),
    "inplace": (
        "inplace",
        [TIMED],
        [
            "| job | entries | bytes | growth | tables | cold | warm | planning, on the host |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            "| seed job | plain | 40.1 MB | 0 B | 1.5 kB | 0.85 | 0.50 | 12 µs |",
        ],
    ),
    "prediction": (
        "prediction",
        [{"mode": "default", "draws": 9, "grew": 5, "exact": 9, "within": 8, "bounded": 7}],
        [
            "| allocator | jobs | that grew | requested exact | allocated within the rounding "
            "| reserved within the bound |",
            "| --- | --- | --- | --- | --- | --- |",
            "| default | 9 | 5 | 9 | 8 | 7 |",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_table(name: str) -> None:
    part, records, want = CASES[name]
    text = f"before\n<!-- memory:{name} -->\nold\nold\n<!-- /memory:{name} -->\nafter\n"
    got, filled = tables.fill(text, run(**{part: records}), "a link")
    assert filled == [name]
    body = "\n".join(want)
    assert got == f"before\n<!-- memory:{name} -->\n{body}\n<!-- /memory:{name} -->\nafter\n"


def test_what_was_not_run_stays() -> None:
    text = "<!-- memory:cap -->\nnot measured yet\n<!-- /memory:cap -->"
    failed = run(cap=[{"way": "torch.cat", "error": "no GPU"}])
    for found in (run(), failed):
        assert tables.fill(text, found, "") == (text, [])


def test_every_table_of_the_document_is_filled(tmp_path: Path) -> None:
    """Twice, as a second run replaces the first."""
    doc, source = tmp_path / "memory.md", tmp_path / "bench" / "run.json"
    source.parent.mkdir()
    doc.write_text(DOC.read_text())
    growth = CASES["ways"][1] + CASES["spread"][1]
    parts = {part: records for part, records, _ in CASES.values()} | {"growth": growth}
    source.write_text(json.dumps(run(**parts)))
    assert tables.main([str(source), str(doc)]) == 0
    once = doc.read_text()
    names = re.findall(r"<!-- memory:(\w+) -->", once)
    assert set(names) == {*tables.TABLES, "source"}
    assert "not measured yet" not in once
    assert "NVIDIA H200, driver 580.1, torch 2.11.0" in once
    assert "[run.json](bench/run.json)" in once
    assert tables.main([str(source), str(doc)]) == 0
    assert doc.read_text() == once


def test_without_a_file_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main([]) == 2
    assert "memory_tables.py" in capsys.readouterr().out
