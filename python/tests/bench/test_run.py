"""A run of everything; no assertion looks at a time."""

from __future__ import annotations

import io
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from goflat import __main__


def test_all_sections_are_there(quick: dict[str, Any]) -> None:
    sections = {"cases", "extras", "sweep", "allocations", "timers", "goals", "seconds", "effort"}
    assert sections <= quick.keys()
    assert [case["name"] for case in quick["cases"]] == ["square", "tiny"]
    assert len(quick["extras"]) == 2
    assert quick["command"] == "python -m goflat bench --quick"  # and no file of this machine
    assert {"cpu", "cores", "threads", "versions"} <= quick["machine"].keys()
    assert {"goflat", "commit", "torch", "numpy"} <= quick["machine"]["versions"].keys()


def test_every_peer_is_measured_or_says_why_not(quick: dict[str, Any]) -> None:
    ways = import_module("benchmarks.ways")
    for case in quick["cases"]:
        told = case["ways"].keys() | case["not measured"].keys()
        assert told >= {name for of in ways.CONTRACTS.values() for name in (of.own, *of.others)}
        assert {"loop", "zip", "split", "cat out=", "foreach copy", "numpy"} <= case["ways"].keys()
        assert case["not measured"]["graph"] == "CUDA graphs need a GPU"
        assert {"median_s", "iqr_s", "samples"} == case["ways"]["goflat"].keys()


def test_ratios_are_those_of_the_medians(quick: dict[str, Any]) -> None:
    contracts = import_module("benchmarks.ways").CONTRACTS
    for case in quick["cases"]:
        for contract, ratio in case["ratios"].items():
            medians = {name: way["median_s"] for name, way in case["ways"].items()}
            assert ratio["ratio"] == pytest.approx(
                medians[ratio["best"]] / medians[contracts[contract].own]
            )


def test_the_sweep_moves_what_it_says(quick: dict[str, Any]) -> None:
    sweep = import_module("benchmarks.sweep")
    assert {point["axis"] for point in quick["sweep"]} == {"bytes", "entries"}
    assert {point["ways"].keys() >= set(sweep.WAYS) for point in quick["sweep"]} == {True}
    for point in (*sweep.SIZE_CURVE[:4], *sweep.COUNT_CURVE[:4]):
        entries = [entry for of_key in point.features("cpu").values() for entry in of_key]
        assert len(entries) == point.entries
        assert sum(entry.nbytes for entry in entries) == point.bytes


def test_the_sweep_spans_what_plots_show() -> None:
    sweep = import_module("benchmarks.sweep")
    assert (sweep.SIZES[0], sweep.SIZES[-1]) == (1 << 10, 1 << 30)
    assert (sweep.COUNTS[0], sweep.COUNTS[-1]) == (2, 30_000)


def test_a_point_that_has_no_room_is_skipped() -> None:
    sweep = import_module("benchmarks.sweep")
    point = sweep.Point("bytes", 64, 1 << 60)
    assert "are free" in sweep.measure(point, None, "cpu")["skipped"]


def test_a_run_as_text(quick: dict[str, Any]) -> None:
    report = import_module("benchmarks.report")
    text = report.text(report.run(quick))
    assert text.count("8x8x(4,64) torch  separate") == 1
    assert "import goflat, after torch" in text
    assert "compiled not measured: more than 0 entries" in text
    lines = [line for line in text.splitlines() if line.startswith("1 KB")]
    assert len(lines) == 1


def test_on_a_terminal_rich_draws_the_table(quick: dict[str, Any]) -> None:
    pytest.importorskip("rich")
    report = import_module("benchmarks.report")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, plain = Terminal(), io.StringIO()
    report.show(report.run(quick), terminal)
    report.show(report.run(quick), plain)
    assert "─" in terminal.getvalue()
    assert plain.getvalue() == report.text(report.run(quick)) + "\n"


def test_parts_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    only = ["--only", "tiny", "--imports", "0", "--rounds", "2", "--block", "1e-4"]
    assert __main__.main(["bench", *only, "--compile-most", "0", "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    assert [case["name"] for case in run["cases"]] == ["tiny"]
    assert not run.keys() & {"sweep", "allocations", "timers"}
    assert {way["samples"] for way in run["cases"][0]["ways"].values()} == {2}
    with pytest.raises(SystemExit):
        __main__.main(["bench", "--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err


# ---- ways ----


def small(library: str) -> dict[str, list[Any]]:
    """Return a job whose keys differ in rows."""
    features = import_module("benchmarks.cases").Case("small", 3, 2, (2, 5), library).features()
    return {**features, "1": [entry[:1] for entry in features["1"]]}


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_all_ways_of_a_ragged_job_agree(library: str) -> None:
    ways, measure = import_module("benchmarks.ways"), import_module("benchmarks.measure")
    runs = ways.ways(library, small(library)).runs
    measure.check(runs)
    runs["zip"] = lambda: [out * 2 for out in runs["loop"]()]
    with pytest.raises(AssertionError, match="zip gives other values"):
        measure.check(runs)


def test_tensordict_is_a_peer() -> None:
    pytest.importorskip("tensordict")
    ways, peers = import_module("benchmarks.ways"), import_module("benchmarks.peers")
    features = small("torch")
    assert "tensordict" in ways.ways("torch", features).runs
    features["0"][1] = features["0"][1][:1]
    assert "one number of rows" in peers.tensordicts(features)


def test_a_loop_is_compiled_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, ways = import_module("benchmarks.peers"), import_module("benchmarks.ways")
    features = small("torch")
    assert peers.compiled(ways.loop_of, features, 5) == "more than 5 entries"

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler\nto be found")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", broken)
        assert peers.compiled(ways.loop_of, features, 6) == "RuntimeError: no compiler"
    with monkeypatch.context() as patch:  # a compiler that takes no time
        patch.setattr(torch, "compile", lambda function, **_: function)
        run = peers.compiled(ways.loop_of, features, 6)
        assert torch.equal(run()[0], ways.loop_of(features)[0])


def test_the_worst_cases_are_there() -> None:
    cases = {case.title for case in import_module("benchmarks.cases").CASES}
    assert {"4x4x(50,256,7,7) torch", "2x1x(4,64) torch", "30000x1x(2,16) numpy"} <= cases


# ---- what a call allocates ----


def test_allocations_are_counted(quick: dict[str, Any]) -> None:
    """A loop of eight torch.cat makes at least eight outputs."""
    (record,) = quick["allocations"]
    jobs = {job["name"]: job["ways"] for job in record["jobs"]}
    assert set(jobs) == {"square", "tiny"}
    assert jobs["square"]["loop"]["python"]["kept_blocks"] >= 8
    if "malloc" not in record["not measured"]:
        malloc = jobs["square"]["loop"]["malloc"]
        assert malloc["calls"] >= 8
        assert malloc["bytes"] >= 8 * 8 * 4 * 64 * 4
        assert jobs["square"]["goflat bound"]["malloc"]["bytes"] < malloc["bytes"] / 8


def test_a_list_is_a_block_that_is_kept() -> None:
    allocations = import_module("benchmarks.allocations")
    nothing = allocations.count(lambda: None)["python"]
    made = allocations.count(lambda: [None] * 1000)["python"]
    assert nothing["kept_bytes"] == 0
    assert 8000 <= made["kept_bytes"] <= 8200


def test_without_a_compiler_only_malloc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    allocations = import_module("benchmarks.allocations")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(allocations.shutil, "which", lambda _: None)
    assert allocations._counter(Path()) == "no C compiler"


# ---- clocks ----


def test_clocks_are_compared(quick: dict[str, Any]) -> None:
    (job,) = quick["timers"]
    assert job["name"] == "square"
    assert job["wall"].keys() == job["Timer"].keys() == {"goflat", "loop", "copy"}


def test_a_block_counts_its_calls() -> None:
    measure = import_module("benchmarks.measure")
    calls: list[int] = []
    assert measure._block(lambda: calls.append(1), 5) > 0
    assert len(calls) == 6  # one to warm up
    calls.clear()
    measure._block(lambda: calls.append(1), 1)
    assert len(calls) == 1


def test_ways_take_turns() -> None:
    turns = import_module("benchmarks.measure").turns(["a", "b", "c"], 4)
    assert ["".join(names) for names in turns] == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("options", [["--quick"], ["--memory", "--only", "cap"]])
def test_without_the_extension_nothing_is_measured(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "goflat._core", None)  # as if it were not there
    with pytest.raises(SystemExit) as ended:
        __main__.main(["bench", *options])
    assert ended.value.code == 2
    assert "calls would run in pure Python" in capsys.readouterr().err
