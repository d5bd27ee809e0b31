"""Notebooks are committed without what they print; `make notebooks` runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


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


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
