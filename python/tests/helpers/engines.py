"""The one place that knows how to choose an engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from goflat import _api, _fallback

NAMES = ("fallback", "native")


def engine(name: str) -> Any:
    """Return the engine called `name`, or None where the extension cannot be used."""
    if name == "fallback":
        return _fallback.flatten
    try:
        native = import_module("goflat._native")
    except ImportError:
        return None
    return native.flatten if native.available() else None


def use(name: str) -> None:
    """Make `goflat.flatten` and `goflat.cat` run on the engine called `name`, for good."""
    chosen = engine(name)
    if chosen is None:
        raise RuntimeError(f"no {name} engine")
    _api._engine = chosen
