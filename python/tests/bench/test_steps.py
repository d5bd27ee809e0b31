"""Steps are taken in order, and their progress is shown on terminals only."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Any

import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps(*costs: float) -> list[Any]:
    module = import_module("benchmarks.steps")
    return [
        module.Step("cases" if n < 2 else "sweep", f"job {n}", cost, lambda n=n: {"n": n})
        for n, cost in enumerate(costs)
    ]


def run(to: Any, *costs: float) -> tuple[dict[str, Any], dict[str, float]]:
    module = import_module("benchmarks.steps")
    found: tuple[dict[str, Any], dict[str, float]] = module.take(
        steps(*costs), module.progress_on(to, sum(costs))
    )
    return found


def test_records_go_to_their_sections() -> None:
    found, seconds = run(None, 1, 1, 1)
    assert found == {"cases": [{"n": 0}, {"n": 1}], "sweep": [{"n": 2}]}
    assert seconds.keys() == found.keys()


def test_what_is_no_terminal_stays_empty() -> None:
    to = io.StringIO()
    run(to, 1, 1)
    assert to.getvalue() == ""


def test_a_line_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    to = Terminal()
    run(to, 30, 90)
    shown = to.getvalue().split("\r\x1b[K")
    assert shown[1] == "  0 %  2:00 left  cases: job 0"
    assert shown[2].startswith(" 25 %  0:0")
    assert shown[-1] == ""


def test_a_bar_with_rich() -> None:
    pytest.importorskip("rich")
    to = Terminal()
    run(to, 30, 90)
    assert "2:00 left" in to.getvalue()
    assert "job 1" in to.getvalue()


def test_what_is_left_goes_by_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("benchmarks.steps")
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    progress, (first, second) = module.Progress(40.0), steps(10, 30)
    assert progress.remaining_s() == 40
    now[0] += 20  # twice as long as expected
    progress.end(first)
    assert progress.remaining_s() == 60
    progress.end(second)
    assert progress.remaining_s() == 0
    assert module.clock(60) == "1:00"
