"""The Python in the documentation runs, and its links lead somewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch

from helpers import engines

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"```python( cuda| jax)?\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "path", [p for p in DOCS if "```python" in p.read_text()], ids=lambda p: p.name
)
def test_python_blocks(path: Path) -> None:
    """Run all blocks of a file in order; those marked cuda or jax run where there is that."""
    if engines.engine("native") is None:
        pytest.skip("the native extension is not built")
    text, names = path.read_text(), dict[str, Any]()
    for found in BLOCK.finditer(text):
        above = "\n" * text.count("\n", 0, found.start(2))  # so that errors name the line
        code = compile(above + found[2], str(path), "exec")
        if runs(found[1]):
            exec(code, names)
    if path.name == "memory.md":
        printed = indent(str(names["plan"]), "    ")
        assert f"\n\n{printed}\n\n" in text


def runs(mark: str | None) -> bool:
    """Report whether a block can be run here; others are compiled."""
    if mark == " jax":
        return find_spec("jax") is not None
    return mark is None or torch.cuda.is_available()


@pytest.mark.parametrize(
    ("name", "link"),
    [(path.name, link) for path in DOCS for link in LINK.findall(path.read_text())],
)
def test_links(name: str, link: str) -> None:
    assert (ROOT / "docs" / link).exists()
