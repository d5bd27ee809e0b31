"""The page on troubleshooting knows every error, every warning and what their texts are made of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import goflat

ROOT = Path(__file__).parents[2]
PACKAGE = Path(goflat.__file__).parent  # installed elsewhere where a wheel is tested
PAGE = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
ERRORS = [
    name
    for name in goflat.__all__
    if isinstance(found := getattr(goflat, name), type) and issubclass(found, Exception)
]
# Texts of Go: Got and Want, sentences of UnavailableError, and what crosses the bridge.
GO_FIELD = re.compile(r'\b(Got|Want|Why|Advice):\s*(?:fmt\.Sprintf\()?"((?:[^"\\]|\\.)*)"')
GO_WIRE = re.compile(r'&wireError\{"\w+", -1, -1, (?:"([^"]*)"|[^"]*), "([^"]*)"\}')
GO_RETURN = re.compile(r'return "((?:[^"\\]|\\.){20,})"')
LEAST = 8  # characters: shorter pieces say nothing, such as "None"


def constants(node: ast.expr) -> list[str]:
    """Return the texts that an expression is made of."""
    return [
        text
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for text in [" ".join(part.value.split())]
        if len(text) >= LEAST
    ]


def is_make(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("make", "make_error", "_error") and len(call.args) >= 4


def internal(call: ast.Call) -> bool:
    return getattr(call.func, "id", "") == "AssertionError"


def python_families() -> list[tuple[str, list[str]]]:
    """Return, for each call that makes an error, what it may say in fixed words."""
    found = []
    for path in sorted(PACKAGE.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            named = {
                node.targets[0].id: constants(node.value)
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            }
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and is_make(call):
                    texts = [text for arg in call.args[1:] for text in constants(arg)]
                    names = [arg.id for arg in call.args if isinstance(arg, ast.Name)]
                    texts += [text for name in names for text in named.get(name, [])]
                    found.append((f"{path.name}:{call.lineno}", texts))
    return [(where, texts) for where, texts in found if texts]


def go_families() -> list[tuple[str, list[str]]]:
    found = []
    for folder in ("flatten", "bridge", "gpu"):
        for path in sorted((ROOT / folder).glob("*.go")):
            if path.name.endswith("_test.go"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                texts = [text for _, text in GO_FIELD.findall(line)]
                texts += [text for pair in GO_WIRE.findall(line) for text in pair]
                texts += GO_RETURN.findall(line) if path.name == "available.go" else []
                pieces = [piece for text in texts for piece in re.split(r"%\S*", text)]
                pieces = [piece.strip() for piece in pieces if len(piece.strip()) >= LEAST]
                if pieces:
                    found.append((f"{folder}/{path.name}:{number}", pieces))
    return found


def sole_texts() -> list[tuple[str, list[str]]]:
    """Return the texts of errors and warnings that are raised as they stand."""
    found = []
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name.startswith("_demo"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            raised = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(raised, ast.Call) and not is_make(raised) and not internal(raised):
                found.append((f"{path.name}:{node.lineno}", constants(raised)))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn":
                found.append((f"{path.name}:{node.lineno}", constants(node)))
    return [(where, texts) for where, texts in found if texts]


@pytest.mark.parametrize("folder", ["flatten", "gpu", "dlpack"])
def test_every_sentinel_of_go_is_told_of(folder: str) -> None:
    """Variables that a Go program compares with, and the types that it unwraps."""
    sources = [p for p in (ROOT / folder).glob("*.go") if not p.name.endswith("_test.go")]
    text = "\n".join(path.read_text() for path in sources)
    names = re.findall(r"^(?:var|\t)? ?(Err[A-Z]\w*) += errors", text, re.MULTILINE)
    assert names
    assert [name for name in names if f"`{folder}.{name}`" not in PAGE] == []


def test_families_are_found() -> None:
    assert len(python_families()) > 50
    assert len(go_families()) > 15
    assert len(sole_texts()) > 5


@pytest.mark.parametrize("name", ERRORS)
def test_every_class_has_a_section(name: str) -> None:
    assert f"## {name}" in PAGE


@pytest.mark.parametrize(
    ("where", "texts"),
    [*python_families(), *go_families(), *sole_texts()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_text_is_told_of(where: str, texts: list[str]) -> None:
    """One fixed part of each text stands on the page, so that a search for it leads there."""
    assert any(text in PAGE for text in texts), f"{where}: none of {texts} in troubleshooting.md"
