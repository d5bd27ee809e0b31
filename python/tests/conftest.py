"""Fixtures, and slow tests only where they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from goflat import _api
from helpers import engines

if TYPE_CHECKING:
    from collections.abc import Iterator

# A loaded machine is no bug: the time limit is that of pytest.
settings.register_profile("goflat", deadline=None, print_blob=True)
settings.load_profile("goflat")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: run with -m slow"))


@pytest.fixture(params=engines.NAMES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test once on each engine; the native one only where it has been built."""
    chosen = engines.engine(request.param)
    if chosen is None:
        pytest.skip("the native extension is not built")
    monkeypatch.setattr(_api, "_engine", chosen)
    yield request.param
