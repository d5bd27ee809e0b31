"""Arenas of the layout of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import goflat

if TYPE_CHECKING:
    from collections.abc import Mapping


def arena_of(features: Any, dim: int = 0) -> goflat.Arena:
    return goflat.Arena(goflat.Layout.of(features, dim=dim))


def fill(arena: goflat.Arena, features: Mapping[Any, Any]) -> None:
    for key, entries in features.items():
        for b, entry in enumerate(entries):
            arena.put(key, b, entry)
