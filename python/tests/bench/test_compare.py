"""Comparing runs: every section counts, and the exit status says what came out."""

from __future__ import annotations

import json
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from goflat import __main__

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).parents[3] / "docs" / "bench"
Run = dict[str, Any]


def ways(**seconds: float) -> Run:
    return {
        name.replace("_", " "): {"median_s": s, "iqr_s": 0.01 * s, "samples": 9}
        for name, s in seconds.items()
    }


def run() -> Run:
    """Return a run with something in each section."""
    memory = {"requested_bytes": 100, "reserved_bytes": 200, "allocations": 4}
    job = {"cold": ways(goflat=1, memcpy=1), "warm": ways(goflat=1, memcpy=1)}
    counts = {"malloc": {"calls": 20.0}, "python": {"kept_blocks": 10.0}}
    goal = {"name": "growth", "value": 1.0, "limit": 1.0, "unit": "x", "met": True}
    return {
        "machine": {"date": "2026-12-01", "cpu": "some CPU", "gpu": {"name": "some GPU"}},
        "load": {"before": 0.0},
        "cases": [
            {
                "title": "job",
                "ways": ways(goflat=1, loop=4, zip=3),
                "ratios": {"separate": {"best": "zip", "ratio": 3.0}},
            }
        ],
        "extras": [{"name": "import", "seconds": 0.02, "limit_s": 0.05}],
        "device": [
            {
                **job,
                "name": "seed",
                "wall": ways(goflat=1, loop=2),
                "memory": {"goflat": memory},
            },
            {"name": "large", "skipped": "needs more"},
        ],
        "fresh": [{"name": "seed", "ways": ways(goflat=1, goflat_fresh=1, zip_fresh=2)}],
        "sweep": [
            {"axis": "bytes", "entries": 64, "bytes": 1024, "skipped": "no room"},
            {
                "axis": "bytes",
                "entries": 64,
                "bytes": 2048,
                "ways": ways(goflat=1, zip=2, goflat_packed=1, split=2),
            },
        ],
        "allocations": [{"jobs": [{"title": "job", "ways": {"goflat": counts, "loop": counts}}]}],
        "parts": {
            "growth": {"records": [{"job": "seed", "way": "goflat flatten_", "worst_peak": 1.0}]},
            "inplace": {"records": [{"job": "seed", "states": {"cold": {"ratio": 1.0}}}]},
            "cap": {"records": [{"way": "cat_", "succeeded": True, "goals": [goal]}]},
        },
    }


def scale(place: Run, key: str, by: float) -> None:
    place[key] *= by


SLOWER: dict[str, tuple[str, Callable[[Run], Any]]] = {
    "wall time": ("cases", lambda r: scale(r["cases"][0]["ways"]["goflat"], "median_s", 1.5)),
    "import": ("extras", lambda r: scale(r["extras"][0], "seconds", 2)),
    "cold": ("device", lambda r: scale(r["device"][0]["cold"]["goflat"], "median_s", 1.2)),
    "warm": ("device", lambda r: scale(r["device"][0]["warm"]["goflat"], "median_s", 1.2)),
    "wall": ("device", lambda r: scale(r["device"][0]["wall"]["goflat"], "median_s", 1.2)),
    "reserved": (
        "device memory",
        lambda r: scale(r["device"][0]["memory"]["goflat"], "reserved_bytes", 2),
    ),
    "fresh": ("fresh", lambda r: scale(r["fresh"][0]["ways"]["goflat fresh"], "median_s", 1.5)),
    "sweep": ("sweep", lambda r: scale(r["sweep"][1]["ways"]["goflat packed"], "median_s", 1.5)),
    "malloc": (
        "allocations",
        lambda r: scale(r["allocations"][0]["jobs"][0]["ways"]["goflat"]["malloc"], "calls", 1.5),
    ),
    "peak": ("memory", lambda r: scale(r["parts"]["growth"]["records"][0], "worst_peak", 2)),
    "in place": (
        "memory",
        lambda r: scale(r["parts"]["inplace"]["records"][0]["states"]["cold"], "ratio", 2),
    ),
    "goal": ("memory", lambda r: scale(r["parts"]["cap"]["records"][0]["goals"][0], "value", 2)),
    "cap": ("memory", lambda r: r["parts"]["cap"]["records"][0].update(succeeded=False)),
    "error": ("memory", lambda r: r["parts"]["growth"]["records"][0].update(error="ValueError")),
    "ended": ("memory", lambda r: r["parts"]["growth"].update(error="ended early")),
}


def compared(tmp_path: Path, before: Any, after: Any, *options: str) -> int:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, content in zip(files, (before, after), strict=True):
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return __main__.main(["bench", "compare", *map(str, files), *options])


def verdicts(before: Run, after: Run) -> set[tuple[str, str]]:
    """Return sections and what became of their numbers, unless all stayed the same."""
    changes = import_module("benchmarks.compare").changes(before, after)
    return {(c.section, c.verdict(0.1)) for c in changes if c.verdict(0.1) != "same"}


@pytest.mark.parametrize("name", SLOWER)
def test_each_section_counts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section, spoil = SLOWER[name]
    before, after = run(), run()
    spoil(after)
    assert verdicts(before, after) == {(section, "worse")}
    assert verdicts(after, before) == {(section, "better")}
    assert compared(tmp_path, before, after) == 1
    assert "worse" in capsys.readouterr().out
    assert compared(tmp_path, after, before) == 0


def test_every_section_has_such_a_test() -> None:
    assert {section for section, _ in SLOWER.values()} == set(
        import_module("benchmarks.compare").SECTIONS
    )


def test_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, run(), run()) == 0
    assert "verdict" not in capsys.readouterr().out
    assert compared(tmp_path, run(), run(), "--all") == 0
    assert "device         seed, cold, goflat / memcpy" in capsys.readouterr().out


def test_a_slower_machine_is_not_a_slower_goflat(tmp_path: Path) -> None:
    before, after = run(), run()
    for record in (*after["cases"], *after["sweep"][1:]):
        for way in record["ways"].values():
            way["median_s"] *= 3
    assert compared(tmp_path, before, after) == 0


def test_another_best_way_is_no_change() -> None:
    """A peer that only the second run has does not change what the first was compared with."""
    before, after = run(), run()
    after["cases"][0]["ways"] |= ways(numpy=1)
    after["cases"][0]["ratios"]["separate"] = {"best": "numpy", "ratio": 1.0}
    assert verdicts(before, after) == set()


@pytest.mark.parametrize(("tolerance", "status"), [("0.1", 1), ("0.3", 0)])
def test_a_tolerance(tmp_path: Path, tolerance: str, status: int) -> None:
    after = run()
    scale(after["device"][0]["cold"]["goflat"], "median_s", 1.2)
    assert compared(tmp_path, run(), after, "--tolerance", tolerance) == status


def test_quartiles_allow_for_noise() -> None:
    after = run()
    goflat = after["device"][0]["cold"]["goflat"]
    scale(goflat, "median_s", 1.2)
    goflat["iqr_s"] = 0.6
    assert verdicts(run(), after) == set()


def test_what_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = run()
    after["machine"]["cpu"] = "another one"
    after["load"]["before"] = 3.0
    del after["fresh"]
    assert compared(tmp_path, run(), after) == 0
    text = capsys.readouterr().out
    assert "cpu differ: some CPU and another one" in text
    assert "The second run had a busy machine, load per core 3.0" in text
    assert "2 of fresh are only in the first run" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting"),
        ("[]", "holds no run"),
        ("{}", "holds no run"),
        ({"machine": {}}, "one run is of a GPU, the other of a CPU"),
        ({"machine": {"gpu": {}}}, "nothing in common"),
        ({"machine": {"gpu": {}}, "cases": [{}]}, "cannot read the section cases"),
        ({"machine": {"gpu": {}}, "device": 3}, "cannot read the section device"),
        ({"machine": {"gpu": {}}, "parts": []}, "cannot read the section memory"),
    ],
)
def test_unusable_files(
    content: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(tmp_path, run(), content) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.json")
    assert __main__.main(["bench", "compare", missing, missing]) == 2
    assert "missing.json" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.json")), ids=lambda path: path.name)
def test_committed_runs_can_be_compared(path: Path) -> None:
    if "permute" in path.name:
        pytest.skip("not a run of this command")
    committed = json.loads(path.read_text())
    assert verdicts(committed, deepcopy(committed)) == set()
    assert import_module("benchmarks.compare").changes(committed, committed)
