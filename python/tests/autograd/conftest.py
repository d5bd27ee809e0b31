"""Nothing of the extension's is left behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from helpers.consuming import live

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    if live() != (0, 0, 0):
        gc.collect()
    assert live() == (0, 0, 0)
