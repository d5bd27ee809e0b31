"""How pip builds goflat: setuptools, and what the extension needs only where it is built.

``GOFLAT_PURE=1`` makes the pure-Python wheel that other systems than Linux x86-64 get anyway; it
needs nothing but setuptools. The names of PEP 517 and PEP 660 are setuptools' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import toolchain
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Ask for Go, gopy's helper and the CUDA headers, if there is an extension to build."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *toolchain.requires()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Ask for what a wheel needs."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *toolchain.requires()]
