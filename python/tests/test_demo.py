"""The demo: honest measures, right text, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

from goflat import __main__, _demo, _demo_run
from helpers import child
from helpers.compare import assert_all_bits

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "goflat", "demo", *arguments],
        env=child.environment(),
        capture_output=True,
        text=True,
        timeout=child.TIMEOUT_S,
        check=False,
    )


def test_numbers_of_a_real_run(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    done = demo("--device", "cpu", "--rows", "8", "--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" bit for bit\n") == 6
    result = json.loads(file.read_text())
    size = 4 * 4 * 8 * 256 * 7 * 7 * 4
    assert result["equal"]
    for numbers in result["ways"].values():
        assert numbers["inputs"] == size
        assert numbers["seconds"] > 0
    for way in ("preallocate", "cat", "goflat"):  # rss is counted in batches of pages
        assert result["ways"][way]["growth"] == pytest.approx(size, rel=0.1, abs=MIB)
    parts = result["ways"]["parts"]
    assert parts["growth"] < MIB
    assert parts["planned"] == 0
    apart = result["ways"]["consume"]
    assert apart["planned"] * 0.9 < apart["growth"] < size + MIB  # malloc keeps small holes
    first, *later = result["ways"]["grow"]["steps"]
    assert first < MIB
    assert later == sorted(later)
    assert result["ways"]["grow"]["growth"] > size * 1.05


def test_json_instead_of_text() -> None:
    done = demo("--device", "cpu", "--rows", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["equal"]


def test_a_file_that_cannot_be_written_is_found_before_all_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["demo", "--json", str(tmp_path / "missing" / "demo.json")])
    assert "is no folder" in capsys.readouterr().err


def test_a_device_that_is_none() -> None:
    done = demo("--device", "nonsense")
    assert (done.returncode, done.stderr) == (2, "")
    assert "cannot run" in done.stdout


def test_a_device_that_cannot_be_measured() -> None:
    with pytest.raises(RuntimeError, match="not meta"):
        _demo_run.choose("meta")


@pytest.mark.parametrize("rows", ["0", "-1", "many"])
def test_rows_are_checked(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["demo", "--rows", rows])
    assert "at least 1" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert __main__.main(["demo"]) == 2
    assert "pip install torch" in capsys.readouterr().out


def test_the_parent_process_does_not_import_torch() -> None:
    child.run("import sys, goflat.__main__; assert 'torch' not in sys.modules")


# ---- text, from numbers that are known ----


def canned(equal: bool = True, extra: dict[str, int] | None = None) -> Any:
    """Return what runs tasks, without running them."""

    def memory(way: str) -> _demo_run.Memory:
        growth, held = {
            "grow": (45 * MIB, 44 * MIB),
            "consume": (10 * MIB, 0),
            "parts": (0, 0),
        }.get(way, (40 * MIB, 40 * MIB))
        steps = [0, 20 * MIB, 35 * MIB, 45 * MIB]
        right = equal or way != "goflat"
        planned = 10 * MIB if way == "consume" else 0
        return _demo_run.Memory(
            40 * MIB, growth, held, planned, steps, extra or {}, right, "a meter"
        )

    environment = dict.fromkeys(("device", "goflat", "torch", "extension"), "some")
    job = {"keys": 4, "batches": 4, "shape": [50, 256, 7, 7], "dtype": "float32"}
    tasks: dict[str, Any] = {
        "setting": lambda *_: {"job": job, "environment": environment},
        "times": lambda *_: {
            way: n * 1e-3 for n, way in enumerate(_demo_run.ways(torch.device("cpu")), 1)
        },
        "memory": lambda way, *_: memory(way),
    }
    return lambda task, *arguments: tasks[task](*arguments)


def test_text_has_the_numbers_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_demo, "_fresh", canned())
    assert __main__.main(["demo"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "torch.cat, key after key 45.0 MiB 2.12x 1.00 ms bit for bit",
        "goflat.flatten 40.0 MiB 2.00x 4.00 ms bit for bit",
        "measured by a meter",
        "the first key's 10.0 MiB, not a copy. Memory rose by 0.0 MiB",
        "after keys 2 to 4 the high-water mark stood at 20.0 MiB, 35.0 MiB, 45.0 MiB",
        "kept 4.0 MiB more than the results, and 90.0 MiB had been copied to deliver 40.0 MiB",
        "goflat.flatten_, parts of one 0.0 MiB 1.00x 6.00 ms bit for bit",
        "parts of one tensor peaked at 1.00x (the plan said 0.0 MiB of growth), entries made one "
        "by one at 1.25x (the plan said 10.0 MiB of growth)",
        "4.0 ms here, against 3.0 ms for torch.cat per batch and 2.0 ms for copying slices",
    ):
        assert part in text


def test_text_about_collected_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = canned()
    monkeypatch.setattr(_demo, "_fresh", fresh)
    result = _demo.run(fresh("setting"), None, 50)
    assert "collect" not in _demo.report(result)
    result["ways"]["collect"] = result["ways"]["parts"]
    assert "0.0 MiB 1.00x" in " ".join(_demo.report(result).split("collected")[1].split())
    assert "made inside goflat.collect() at 1.00x" in " ".join(_demo.report(result).split())


def test_wrong_values_are_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_demo, "_fresh", canned(equal=False))
    assert __main__.main(["demo"]) == 1
    assert capsys.readouterr().out.count(" NO\n") == 1


def test_further_measures_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = canned(extra={"allocated": 42 * MIB})
    monkeypatch.setattr(_demo, "_fresh", fresh)
    result = _demo.run(fresh("setting"), None, 50)
    head, *lines = _demo.report(result).split("\n\n")[1].splitlines()
    assert "allocated" in head
    assert all("42.0 MiB" in line for line in lines)


def test_the_last_screen_is_the_memory_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = canned()
    monkeypatch.setattr(_demo, "_fresh", fresh)
    result = _demo.run(fresh("setting"), None, 50)
    last = _demo.report(result).split("Peak memory")[1]
    bars = [line.split() for line in last.splitlines() if "█" in line]
    assert [bar[-3:] for bar in bars] == [
        ["83,886,080", "B", "█" * 40],
        ["41,943,040", "B", "█" * 20],
    ]
    assert "torch.cat took 41,943,040 B beside the inputs, goflat.flatten_ 0 B" in last
    assert "the same, bit for bit" in " ".join(last.split())
    assert "goflat.Arena" in last
    result["ways"]["collect"] = result["ways"]["parts"]
    assert "with goflat.collect()" in _demo.report(result).split("Peak memory")[1]


def test_wrong_values_show_in_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = canned()
    monkeypatch.setattr(_demo, "_fresh", fresh)
    result = _demo.run(fresh("setting"), None, 50)
    result["ways"]["parts"]["equal"] = False
    assert "NOT THE SAME" in " ".join(_demo.report(result).split())


def test_what_it_tells_to_do_with_your_own_dict(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in _demo.OWN.splitlines() if line.startswith("    ")]
    features = _demo_run.parts(torch.device("cpu"), 2)
    want = [torch.cat([features[k][b] for k in features]) for b in range(4)]
    names: dict[str, Any] = {"features": features}
    del features
    exec(textwrap.dedent("\n".join(lines)), names)
    assert "growth 0 B" in capsys.readouterr().out
    assert_all_bits(list(names["flat"]), want)
    assert names["features"] == {}


def test_progress_names_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = canned()
    monkeypatch.setattr(_demo, "_fresh", fresh)
    said: list[tuple[str, float]] = []
    _demo.run(fresh("setting"), None, 50, lambda *step: said.append(step))
    assert len(said) == 1 + len(_demo_run.ways(torch.device("cpu")))
    shares = [share for _, share in said]
    assert shares == sorted(shares)
    assert shares[-1] < 1


# ---- ways and meters ----


@pytest.mark.parametrize("way", _demo_run.ways(torch.device("cpu")))
def test_ways_agree(way: str) -> None:
    run, make = _demo_run.WAYS[way]
    features = make(torch.device("cpu"), 2)
    want = [torch.cat([features[k][b] for k in features]) for b in range(4)]
    assert_all_bits(list(run(features, lambda: None)), want)


def test_host_meter_sees_what_is_freed_again() -> None:
    meter = _demo_run.HostMeter()
    meter.start()
    block = bytearray(b"x") * (64 * MIB)
    there = meter.read()
    del block
    gone = meter.read()
    assert there.peak > 56 * MIB
    assert there.held > 56 * MIB
    assert gone.peak > 56 * MIB
    assert gone.held < 8 * MIB


def test_host_meter_without_clear_refs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_demo_run, "Path", lambda _: tmp_path / "missing" / "file")
    meter = _demo_run.HostMeter()
    meter.start()
    assert "ru_maxrss" in meter.method
    assert meter.read().peak >= 0


def test_cuda_meter_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        f"{name}_bytes.all.{which}": 100 * scale
        for scale, name in enumerate(("requested", "allocated", "reserved"), 1)
        for which in ("current", "peak")
    }
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    meter = _demo_run.CudaMeter()
    meter.start()
    stats |= {"requested_bytes.all.peak": 140, "allocated_bytes.all.peak": 260}
    stats |= {"reserved_bytes.all.current": 380}
    assert calls == ["synchronize", "reset_peak_memory_stats"]
    assert meter.read() == (40, 80)
    assert meter.extra() == {"allocated": 60}
