"""Where the fake driver and the array library are, and how to run something on them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from helpers import child

if TYPE_CHECKING:
    from pathlib import Path


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
