"""Consuming calls run with the extension and without it, and leave nothing behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from goflat import _native
from helpers.consuming import live

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    if live() != (0, 0, 0):
        gc.collect()
    assert live() == (0, 0, 0)


@pytest.fixture(params=("native", "pure Python"))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the extension and without it."""
    if request.param == "native":
        if not _native.available():
            pytest.skip("no extension")
    else:
        monkeypatch.setattr(_native, "_core", None)
    return str(request.param)
