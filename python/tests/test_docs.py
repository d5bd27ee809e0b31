"""The Python in the documentation runs, and its links lead somewhere."""

from __future__ import annotations

import argparse
import re
import subprocess
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch

import goflat
from goflat import _demo, _doctor
from helpers import engines

ROOT = Path(__file__).parents[2]
PACKAGE = Path(goflat.__file__).parent  # installed elsewhere where a wheel is tested
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
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
    ("path", "link"),
    [(path, link) for path in PAGES for link in LINK.findall(path.read_text())],
    ids=lambda value: value if isinstance(value, str) else str(value.relative_to(ROOT)),
)
def test_links(path: Path, link: str) -> None:
    assert (path.parent / link).exists()


LISTED = re.compile(r"(?:[-*]|1\.) |\|")  # how an item of a list or a row of a table begins


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lists_and_tables_stand_apart(path: Path) -> None:
    """A blank line comes before them: GitHub needs none, the documentation site does."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    joined = [
        line
        for above, line in pairwise(text.splitlines())
        if LISTED.match(line) and above and not re.match(r"\s|<!--", above)
        if not LISTED.match(above)
    ]
    assert joined == []


def test_the_index_has_every_decision() -> None:
    records = {path.name for path in (ROOT / "docs" / "adr").glob("0*.md")}
    assert set(LINK.findall((ROOT / "docs" / "adr" / "index.md").read_text())) == records


def test_every_example_is_shown() -> None:
    links = set(LINK.findall((ROOT / "docs" / "examples.md").read_text()))
    there = [
        path for path in (ROOT / "examples").glob("*/*") if not path.name.startswith((".", "_"))
    ]
    shown = {ROOT / "docs" / link for link in links}
    assert {path.resolve() for path in there} == {path.resolve() for path in shown}


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: goflat\.(\w+)$", (ROOT / "docs" / "reference.md").read_text(), re.M)
    assert sorted(named) == sorted(goflat.__all__)


@pytest.mark.parametrize("command", [_demo, _doctor], ids=lambda module: module.__name__)
def test_the_command_line_has_every_option(command: Any) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    text = (ROOT / "docs" / "cli.md").read_text()
    for action in parser._actions:
        assert f"`{action.option_strings[-1]}`" in text


COMMANDS = sorted(
    {
        (path.name, command.partition("#")[0].strip())
        for path in [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for command in re.findall(r"^    ((?:make|python) .+|tools/.+)", path.read_text(), re.M)
    }
)


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_commands_are_those_there_are(name: str, command: str) -> None:
    """A target of the Makefile, a command of goflat, or a script that is there."""
    first, *rest = command.replace("|", " ").split()
    if first == "make":
        targets = {line.partition(":")[0] for line in _makefile() if ".PHONY" not in line}
        assert {word for word in rest if "=" not in word} - _words(targets) == set()
    elif rest[:2] == ["-m", "goflat"]:
        assert set(rest[2:3]) <= {"demo", "doctor", "bench"}
    else:
        script = first if first.startswith("tools/") else rest[0]
        assert (ROOT / script).exists()


def _makefile() -> list[str]:
    text = (ROOT / "Makefile").read_text()
    return [line for line in text.splitlines() if re.match(r"[a-z][a-z -]*:", line)]


def _words(targets: set[str]) -> set[str]:
    return {word for target in targets for word in target.split()}


def test_every_variable_is_told_of() -> None:
    """Those that goflat itself reads; processes.md says what they do."""
    texts = [path.read_text() for path in PACKAGE.glob("*.py")]
    names = set(re.findall(r"\bGOFLAT_[A-Z]+\b", " ".join(texts)))
    told = (ROOT / "docs" / "processes.md").read_text()
    assert names
    assert {name for name in names if name not in told} == set()


def test_architecture_matches_the_tree() -> None:
    """Each path that it names is there, and each folder with code is named."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[A-Za-z_./0-9]*)`", text)
    assert named
    assert [path for path in named if not _place(path).exists()] == []
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    code = [path for path in listed.stdout.split() if path.endswith((".py", ".go", ".c", ".cu"))]
    folders = {path.rpartition("/")[0] for path in code} - {""}
    missing = [folder for folder in folders if not any(_holds(name, folder) for name in named)]
    assert sorted(missing) == []


def _place(path: str) -> Path:
    inside = path.removeprefix("python/goflat/")
    return PACKAGE / inside if inside != path else ROOT / path


def _holds(name: str, folder: str) -> bool:
    """Report whether a folder that is named is `folder`, or one that it lies in."""
    return name.endswith("/") and f"{folder}/".startswith(name)
