"""Prints what ``pip wheel .`` would install into its build environment, one requirement a line."""

from __future__ import annotations

from pathlib import Path

from pip._vendor import tomli  # tomllib of the standard library starts at Python 3.11

config = tomli.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print(*config["build-system"]["requires"], sep="\n")
