"""Python code in a process of its own."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from .zygote import Zygote

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 60  # a hung child fails its test instead of stopping the suite

_CHOICE = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there is no extension, perhaps
    from helpers import engines
engines.use({engine!r})
"""


def run(
    code: str, *flags: str, engine: str | None = None, env: dict[str, str] | None = None
) -> str:
    """Run `code` in a new interpreter; assert that it ends well and says nothing on stderr."""
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


def fork(code: str, *, engine: str | None = None, status: int = 0) -> str:
    """Run `code` where torch is imported and goflat is not; assert how it ends.

    Quicker than `run`, but no test of how an interpreter starts and exits.

    Returns
    -------
    str
        What it wrote to stdout and stderr.
    """
    got, output = _zygote().run(source(code, engine), TIMEOUT_S)
    assert got == status, output
    return output


def source(code: str, engine: str | None = None) -> str:
    """Return `code` with the lines before it that choose an engine."""
    return (_CHOICE.format(engine=engine) if engine else "") + textwrap.dedent(code)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which the child finds goflat and the helpers."""
    path = os.pathsep.join([str(TESTS), *(part for part in sys.path if part)])
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


@functools.cache
def _zygote() -> Zygote:
    zygote = Zygote(environment())
    atexit.register(zygote.close)
    return zygote
