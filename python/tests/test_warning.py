"""GrowthWarning names holders where somebody will read it, and takes no time elsewhere."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native, _ownership, _warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the searches for a holder, and forget who was told before."""
    seen: list[int] = []
    why = _ownership.why
    monkeypatch.setattr(_ownership, "why", lambda *args: (seen.append(1), why(*args))[1])
    monkeypatch.setattr(_warning, "_explained", set())
    yield seen


def grow() -> None:
    kept = torch.ones(2, 3)
    goflat.flatten_({"a": [kept]})


def grow_by_cat() -> None:
    kept = torch.ones(2, 3)
    goflat.cat_([kept])


def ignore() -> None:
    warnings.filterwarnings("ignore", category=goflat.GrowthWarning)


FILTERS: dict[str, Callable[[], Any]] = {
    "category": ignore,
    "all": lambda: warnings.simplefilter("ignore"),
    "text": lambda: warnings.filterwarnings("ignore", message=r"\w+ grows by"),
    "module": lambda: warnings.filterwarnings("ignore", module=re.escape(__name__)),
    "line": lambda: [
        warnings.filterwarnings("ignore", lineno=n)
        for n in (grow.__code__.co_firstlineno + 2, grow_by_cat.__code__.co_firstlineno + 2)
    ],
}


@pytest.mark.parametrize("call", [grow, grow_by_cat])
@pytest.mark.parametrize("name", FILTERS)
def test_nobody_is_looked_for_if_the_warning_is_dropped(
    name: str, call: Callable[[], None], searches: list[int]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FILTERS[name]()
        call()
    assert (len(caught), len(searches)) == (0, 0)


@pytest.mark.parametrize("other", [UserWarning, DeprecationWarning])
def test_filters_for_others_drop_nothing(other: type[Warning], searches: list[int]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="something else", category=other)
        warnings.filterwarnings("ignore", module="elsewhere")
        warnings.filterwarnings("ignore", lineno=1)
        grow()
    assert (len(caught), len(searches)) == (1, 1)


def test_shown_and_raised_warnings_always_name_holders(searches: list[int]) -> None:
    for _ in range(3):
        with pytest.warns(goflat.GrowthWarning, match="the variable 'kept' of grow"):
            grow()
    for _ in range(3):
        with pytest.raises(goflat.GrowthWarning, match="the variable 'kept' of grow"):
            grow()
    assert len(searches) == 6


@pytest.mark.parametrize("action", ["default", "module", "once"])
def test_a_line_is_told_once(action: Any, searches: list[int]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for rows in range(2, 7):  # a text of its own each
            kept = torch.ones(rows, 3)
            goflat.flatten_({"a": [kept]})
    assert len(searches) == 1
    assert "the variable 'kept'" in str(caught[0].message)
    assert "somebody else refers to it" in str(caught[1].message)


def test_the_filters_of_a_bare_interpreter(searches: list[int]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.filters[:] = [  # type: ignore[index]
            ("ignore", None, DeprecationWarning, "__main__", 0),
            ("ignore", None, UserWarning, "__main__", 0),
        ]
        warnings.simplefilter("default", append=True)
        grow()
    assert (len(caught), len(searches)) == (1, 1)


def test_a_call_without_enough_callers() -> None:
    assert _warning.in_full("text", goflat.GrowthWarning, 10_000)
