"""The types that users see, as mypy reveals them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import goflat

FILE = Path(__file__).parent / "typed" / "api.py"


def test_revealed_types(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("mypy")
    want = expected(FILE.read_text())
    assert want
    assert revealed(mypy(tmp_path_factory.getbasetemp().parent / "mypy")) == want


def mypy(cache: Path) -> str:
    """Return what mypy says about FILE; its cache outlives the run, as torch takes it a minute."""
    package = Path(goflat.__path__[0]).parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", str(FILE)],
        # mypy finds installed packages itself, and refuses to be pointed at them
        env=os.environ
        if package.name == "site-packages"
        else {**os.environ, "MYPYPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def expected(source: str) -> dict[int, str]:
    """Return by line what its comment promises: a type, or ``error: code``."""
    lines = enumerate(source.splitlines(), 1)
    promises = {n: re.search(r"  # (.+)$", line) for n, line in lines}
    return {n: found[1] for n, found in promises.items() if found}


def revealed(output: str) -> dict[int, str]:
    """Return by line what mypy says, modules left out of names."""
    said: dict[int, str] = {}
    for line in output.splitlines():
        note = re.match(r'.*api\.py:(\d+): note: Revealed type is "(.+)"', line)
        error = re.match(r".*api\.py:(\d+): error: .*\[([a-z-]+)\]", line)
        if note:
            short = re.sub(r"\b(?:\w+\.)+(?=\w)", "", note[2])
            # NumPy 2.2 calls an array's shape tuple[int, ...], later ones tuple[Any, ...]
            said[int(note[1])] = short.replace("ndarray[tuple[int,", "ndarray[tuple[Any,")
        elif error:
            said[int(error[1])] = f"error: {error[2]}"
    return said
