"""The comparison of host times of both passes runs; no assertion looks at a time."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize("entries", ["leaves", "parts"])
def test_ways_take_turns(entries: str) -> None:
    module = import_module("benchmarks.autograd")
    found = module.compare(module.Case(2, 3, (4, 5), entries), 2, lambda: None)
    assert found.keys() == {"torch.cat", "goflat"}
    assert all(forward > 0 < backward for forward, backward, _ in found.values())
