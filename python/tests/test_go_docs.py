"""The Go in the documentation is that of examples, which the Go tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```go\n(.*?)```", re.DOTALL)
SOURCES = [*(ROOT / "examples" / "go").rglob("*.go"), *ROOT.glob("*/example_test.go")]


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()} - {""}


def test_go_blocks() -> None:
    known = set().union(*(lines(path.read_text()) for path in SOURCES))
    blocks = BLOCK.findall((ROOT / "docs" / "go.md").read_text())
    assert blocks
    for block in blocks:
        assert lines(block) - known == set()


@pytest.mark.parametrize("package", ["flatten", "gpu", "dlpack"])
def test_each_package_is_told_of(package: str) -> None:
    assert f"[{package}](../{package})" in (ROOT / "docs" / "go.md").read_text()
