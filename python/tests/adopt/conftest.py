"""Outputs are made in two ways, and none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.adopting import live
from helpers.owning import WAYS, asking

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make outputs in one of the two ways, and see that none is left."""
    with asking(request.param):
        yield request.param
    assert live() == 0
