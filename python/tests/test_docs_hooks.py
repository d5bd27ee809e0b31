"""What the documentation site has beside the pages: files of the repository that they link to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "docs_hooks", raising=False)
    import docs_hooks

    return docs_hooks


@pytest.mark.parametrize(
    ("page", "text", "want"),
    [
        ("go.md", "[a](../flatten)", "[a](source/flatten/index.md)"),
        ("go.md", "[a](../LICENSE)", "[a](source/LICENSE.md)"),
        ("go.md", "[a](gpu.md#streams)", "[a](gpu.md#streams)"),
        ("adr/index.md", "[a](../../README.md)", "[a](../source/README.md.md)"),
        ("source/README.md.md", "[a](docs/go.md)", "[a](../go.md)"),
        ("source/README.md.md", "[a](LICENSE)", "[a](LICENSE.md)"),
        ("source/flatten/index.md", "[a](doc.go)", "[a](doc.go.md)"),
        (
            "go.md",
            "[a](https://arxiv.org/abs/1) [b](#here)",
            "[a](https://arxiv.org/abs/1) [b](#here)",
        ),
        ("go.md", "f[k](b) [a](../../etc/passwd)", "f[k](b) [a](../../etc/passwd)"),
        ("go.md", "```python cuda\nx\n```", "```python\nx\n```"),
    ],
)
def test_links_become_those_of_the_site(hooks: Any, page: str, text: str, want: str) -> None:
    got = hooks.on_page_markdown(text, page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))
    assert got == want


def test_a_folder_shows_what_it_says_of_itself(hooks: Any) -> None:
    text = hooks.render("flatten")
    assert text.startswith("# flatten\n")
    assert "// Package flatten plans" in text
    assert "`slices.go`" in text


def test_a_program_is_shown(hooks: Any) -> None:
    text = hooks.render("examples/python/roi_features.py")
    assert "```python\n" in text
    assert "import goflat" in text


def test_a_notebook_is_shown_with_its_outputs(hooks: Any, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["f()"],
            "outputs": [
                {"text": ["said\n"]},
                {"data": {"image/png": "QUJD\n", "text/plain": ["<Figure>"]}},
                {"data": {"text/plain": ["7"]}},
            ],
        },
    ]
    path = tmp_path / "some.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    got = hooks.notebook(path)
    assert got.startswith("# Title\n\n```python\nf()\n```\n\n```text\nsaid\n```\n\n<img ")
    assert 'src="data:image/png;base64,QUJD">' in got
    assert got.endswith("```text\n7\n```")
    assert "Figure" not in got


def test_fences_are_longer_than_those_within(hooks: Any) -> None:
    assert hooks.fenced("```\nx\n```", "text") == "````text\n```\nx\n```\n````"
