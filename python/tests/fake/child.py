"""Tests that run in a process of their own, on the fake driver."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fake.place import Fake

    Test = Callable[..., None]


def in_child(**values: Iterable[Any]) -> Callable[[Test], Test]:
    """Turn a test into one that runs itself in a new interpreter on the fake driver.

    It fails if it raises or crashes, or leaves something on stderr. Its arguments take each of
    `values`, as with pytest's parametrize, and cross as literals.
    """

    def decorate(test: Test) -> Test:
        def outside(fake: Fake, **given: Any) -> None:
            name = test.__name__
            fake.run(f"from {test.__module__} import {name} as t; t.inside(**{given!r})")

        outside.__name__, outside.__doc__ = test.__name__, test.__doc__
        outside.__signature__ = _signature(test)  # type: ignore[attr-defined]
        outside.inside = test  # type: ignore[attr-defined]
        return _parametrized(outside, values)

    return decorate


def _signature(test: Test) -> inspect.Signature:
    """Return the signature of `test` with the fixture that the outer half needs."""
    fixture = inspect.Parameter("fake", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([fixture, *inspect.signature(test).parameters.values()])


def _parametrized(test: Test, values: dict[str, Iterable[Any]]) -> Test:
    pytest = sys.modules.get("pytest")  # children are spared its import
    for name, each in values.items() if pytest else ():
        test = pytest.mark.parametrize(name, each)(test)
    return test


class _Library:
    """`fake.library`, imported when first used: only children can."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module("fake.library"), name)
        except ImportError as error:
            raise AttributeError(name) from error


lib = _Library()
