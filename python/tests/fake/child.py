"""Tests that run in a process of their own, with a driver of their choice."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from helpers import child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Test = Callable[..., None]


def in_child(test: Test) -> Test:
    """Turn `test` into one that runs itself in a new interpreter on the fake driver.

    Its arguments, which pytest's parametrize gives, cross as literals. What it prints is not
    looked at; it fails if it raises, or crashes, or leaves something on stderr.
    """

    def outside(fake: Fake, **arguments: Any) -> None:
        fake.run(f"from {test.__module__} import {test.__name__} as t; t.inside(**{arguments!r})")

    own = inspect.Parameter("fake", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    outside.__signature__ = inspect.Signature([own, *inspect.signature(test).parameters.values()])  # type: ignore[attr-defined]
    outside.__name__, outside.__doc__, outside.__module__ = (
        test.__name__,
        test.__doc__,
        test.__module__,
    )
    outside.inside = test  # type: ignore[attr-defined]
    return outside


class Fake:
    """Where the fake driver and the array library are.

    Parameters
    ----------
    driver : Path
        Folder of the fake ``libcuda.so.1``.
    extension : Path
        Folder of ``fakearray``.
    """

    def __init__(self, driver: Path, extension: Path) -> None:
        self.driver = driver
        self.extension = extension

    def run(self, code: str, *, library_path: str | None = None, **env: str) -> str:
        """Run `code` on the driver in `library_path`, the fake one by default."""
        path = child.environment()["PYTHONPATH"]
        given = {
            "LD_LIBRARY_PATH": str(self.driver) if library_path is None else library_path,
            "PYTHONPATH": os.pathsep.join([path, str(self.extension)]),
        }
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            env={**os.environ, **given, **env},
            capture_output=True,
            text=True,
            timeout=child.TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout
