"""The command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from goflat import __main__
from helpers import child

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--nonsense"], ["doctor", "x"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        __main__.main(arguments)
    assert "usage: python -m goflat" in capsys.readouterr().err


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        __main__.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("demo", "doctor", "bench"))


@pytest.mark.parametrize("command", [[], ["demo"], ["doctor"]])
def test_help_has_an_example_and_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        __main__.main([*command, "--help"])
    text = capsys.readouterr().out
    assert re.findall(r"^  ([0-9])  ", text, re.MULTILINE) == ["0", "1", "2"]
    examples = re.findall(r"^  python -m goflat (.+)$", text, re.MULTILINE)
    assert examples
    for example in examples:  # what it shows is accepted
        arguments = example.split(" > ")[0].split()
        __main__._parser().parse_args(arguments)


def test_bench_outside_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "__file__", str(tmp_path / "goflat" / "__main__.py"))
    assert __main__.main(["bench"]) == 2
    assert "checkout" in capsys.readouterr().out


def test_bench_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    assert __main__.main(["bench"]) == 2
    assert "pip install torch numpy" in capsys.readouterr().out


def test_importing_it_runs_nothing() -> None:
    assert child.run("import goflat.__main__") == ""
