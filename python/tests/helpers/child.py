"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 60  # a hung child fails the test instead of stopping the suite


def run(
    code: str, *flags: str, engine: str | None = None, env: dict[str, str] | None = None
) -> str:
    """Run `code`, assert that it ends well and says nothing on stderr, and return its output."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", source(code, engine)],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def source(code: str, engine: str | None = None) -> str:
    """Return `code` with the lines before it that choose an engine."""
    choice = f"from helpers import engines\nengines.use({engine!r})\n" if engine else ""
    return choice + textwrap.dedent(code)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which the child finds goflat and the helpers."""
    path = os.pathsep.join([str(TESTS), *(part for part in sys.path if part)])
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}
