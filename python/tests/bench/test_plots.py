"""Plots show what a run has measured, and those in the documentation come from a committed run."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from goflat import __main__

DOCS = Path(__file__).parents[3] / "docs"
IMAGES = sorted((DOCS / "plots").glob("sweep-*.svg"))


def test_a_plot_of_a_run(quick: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, image = tmp_path / "run.json", tmp_path / "image.svg"
    file.write_text(json.dumps(quick))
    assert __main__.main(["bench", "plot", str(file), "--to", str(image)]) == 0
    text = image.read_text()
    for style in import_module("benchmarks.plots").STYLES.values():
        assert f">{style.title}</text>" in text
    assert "run.json" in text
    again = tmp_path / "again.svg"
    assert __main__.main(["bench", "plot", str(file), "--to", str(again)]) == 0
    assert again.read_text() == text


@pytest.mark.parametrize("run", [{"machine": {}}, {"machine": {}, "sweep": []}, []])
def test_nothing_to_draw(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    assert __main__.main(["bench", "plot", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_without_matplotlib(
    quick: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(quick))
    monkeypatch.setattr(import_module("benchmarks.plots"), "find_spec", lambda _: None)
    assert __main__.main(["bench", "plot", str(file)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_committed_plots_come_from_committed_runs(image: Path) -> None:
    text = image.read_text()
    (source,) = re.findall(r"<dc:source>([^<]+)</dc:source>", text)
    run = json.loads((DOCS / "bench" / source).read_text())
    points = [point for point in run["sweep"] if "ways" in point]
    assert {point["axis"] for point in points} == {"bytes", "entries"}
    plots = import_module("benchmarks.plots")
    assert plots._title(run) in text
    assert f"plots/{image.name}" in (DOCS / "performance.md").read_text()
