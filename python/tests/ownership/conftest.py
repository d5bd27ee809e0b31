"""The survey asks in two ways, whose answers are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.owning import WAYS, asking

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ask in one of the two ways."""
    with asking(request.param):
        yield request.param
