"""The tables of docs/performance.md: from a run that is known, and from those committed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "performance.md"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "performance_tables", raising=False)
    import performance_tables

    return performance_tables


def ways(**seconds: float) -> dict[str, Any]:
    return {name.replace("_", " "): {"median_s": s, "iqr_s": 0.0} for name, s in seconds.items()}


def run(gpu: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "command": "python -m goflat bench",
        "machine": {
            "date": "2026-12-01T12:00:00",
            "cpu": "some CPU",
            "versions": {"torch": "2.11.0", "goflat": "0.1.0"},
        },
        "cases": [
            {
                "title": "2x1x(4,64) torch",
                "ways": ways(loop=2e-6, goflat=4e-6),
                "ratios": {"separate": {"best": "loop", "ratio": 0.5}},
            }
        ],
        "goals": [{"name": "seed", "got": 1.2, "want": 1.1, "least": False, "met": False}],
    }
    if gpu:
        found["machine"]["gpu"] = {"name": "NVIDIA H200", "driver": "580.1"}
        levels = {"requested_bytes": 100, "reserved_bytes": 200, "allocations": 4}
        found["device"] = [
            {
                "name": "seed",
                "about": "4x4",
                "bytes": 100,
                "cold": ways(goflat=1.05e-5, loop=1.4e-5, memcpy=1e-5),
                "warm": ways(goflat=0.9e-5, memcpy=1e-5),
                "wall": ways(goflat=2e-5, loop=4e-5),
                "memory": {"goflat": levels, "loop": levels},
            },
            {"name": "large", "skipped": "needs more"},
        ]
        times = ways(goflat=1e-5, goflat_fresh=1e-5, zip_fresh=3e-5)
        found["fresh"] = [{"name": "seed, fresh", "ways": times}]
        found["sweep"] = [{"axis": "bytes"}]
        both = {"wall": {"copy": 1e-5}, "Timer": {"copy": 2e-5}}
        found["timers"] = [{"title": "4x4", **both, "device": {"copy": 3e-6}}]
        found["timers"][0]["do_bench"] = {"copy": 2e-6}
        python = {"kept_blocks": 10.0, "peak_bytes": 64.0}
        counts = {"malloc": {"calls": 20.0, "bytes": 1234.0}, "python": python}
        names = ("goflat", "goflat bound", "loop", "split", "foreach copy")
        found["allocations"] = [{"jobs": [{"title": "4x4", "ways": dict.fromkeys(names, counts)}]}]
    return found


def test_a_known_run_on_a_gpu(tables: Any) -> None:
    text = "".join(f"<!-- gpu:{name} -->\n<!-- /gpu:{name} -->\n" for name in tables.SECTIONS)
    got, filled = tables.fill(text, run(gpu=True), "a link")
    assert set(filled) == {f"gpu:{name}" for name in tables.SECTIONS}
    assert "| seed | 4x4 | 100 B | 10 µs | 1.050 |  | 1.400 |  | 0.900 |" in got
    assert "| 2x1x(4,64) torch | separate | loop | 2.0 µs | 4.0 µs | 0.50 |" in got
    assert "| seed | 1.00 | 2.00 | 1.00 | 2.00 | 4 | 4 |" in got
    assert "| seed | 1.2 | at most 1.1 | **missed** |" in got
    assert "NVIDIA H200, driver 580.1" in got
    assert "large" not in got
    assert "| 4x4 | goflat | 20 | 1,234 |  | 10 | 64 |" in got
    assert "| 4x4 | memcpy | 10 µs | 20 µs | 0.50 | 3.0 µs | 2.0 µs | 1.50 |" in got


def test_a_run_of_some_parts_leaves_the_other_tables(tables: Any) -> None:
    whole = run(gpu=True)
    part = {key: whole[key] for key in ("command", "machine", "sweep", "timers")}
    text = "".join(f"<!-- gpu:{name} -->\nold\n<!-- /gpu:{name} -->\n" for name in tables.SECTIONS)
    got, filled = tables.fill(text, {**part, "cases": [], "goals": []}, "a link")
    assert filled == ["gpu:clocks", "gpu:extras"]
    assert got.count("old") == len(tables.SECTIONS) - 2


def test_a_run_fills_only_what_is_its_devices(tables: Any) -> None:
    text = (
        "<!-- gpu:ways -->\nold\n<!-- /gpu:ways -->\n<!-- cpu:ways -->\nold\n<!-- /cpu:ways -->\n"
    )
    got, filled = tables.fill(text, run(gpu=False), "")
    assert filled == ["cpu:ways"]
    assert got.startswith("<!-- gpu:ways -->\nold\n")
    assert "old" not in got.split("cpu:ways")[1]


def test_the_document_shows_the_committed_runs(tables: Any) -> None:
    """Filling it from the files that it links to must change nothing."""
    text = DOC.read_text()
    files = re.findall(r"Every record is in \[[^]]+\]\((bench/[^)]+)\)", text)
    assert {file.split("-")[0] for file in files} >= {"bench/cpu", "bench/h200"}
    for file in set(files):
        path = DOC.parent / file
        got, _ = tables.fill(text, json.loads(path.read_text()), f"[{path.name}]({file})")
        assert got == text


def test_main_explains_itself(tables: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main([]) == 2
    assert "performance_tables.py" in capsys.readouterr().out
