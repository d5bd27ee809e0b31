"""Prints what a development environment needs to build, one requirement a line.

That is what ``pip wheel .`` installs into its build environment, and a C++ compiler for the fake
driver of the tests where the machine has none.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import toolchain
from pip._vendor import tomli  # tomllib of the standard library starts at Python 3.11

config = tomli.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print(*config["build-system"]["requires"], *toolchain.requires(), sep="\n")
if not shutil.which("g++"):
    print("ziglang==0.17.1")
