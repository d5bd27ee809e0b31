"""Notebooks are committed without what they print; `make notebooks` runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LINES = 30  # of a cell: what a screen shows with its output


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path: Path) -> None:
    for cell in cells(path):
        assert cell["metadata"] == {}
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_links(path: Path) -> None:
    text = "".join(line for cell in cells(path) for line in cell["source"])
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (FOLDER / link).exists()


def code(path: Path) -> list[list[str]]:
    return [cell["source"] for cell in cells(path) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_are_short(path: Path) -> None:
    assert max(map(len, code(path))) <= LINES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_they_assert_and_draw(path: Path) -> None:
    text = "".join(line for cell in code(path) for line in cell)
    assert "assert " in text
    assert "plt.show()" in text


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["memory", "quickstart", "roi_features", "speed"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_readme_names_it(path: Path) -> None:
    root = FOLDER.parents[1]
    assert str(path.relative_to(root)) in (root / "README.md").read_text()
