"""The tables and the bars of docs/why.md are those of the committed run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "why.md"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "why_tables", raising=False)
    import why_tables

    return why_tables


def way(name: str, peak: float, grown: int) -> dict[str, Any]:
    growth = {"requested": grown, "allocated": grown, "reserved": 2 * grown}
    found = {
        "kind": "ways",
        "mode": "default",
        "job": "seed job",
        "way": name,
        "title": f"<{name}>",
    }
    return {**found, "peak": peak, "growth": growth}


def test_a_known_run(tables: Any) -> None:
    names = {name for names in tables.WAYS.values() for name in names}
    records = [way(name, 2.5, 4_000_000) for name in sorted(names)]
    other = {**way("grow", 9.0, 9), "mode": "expandable_segments"}
    run = {"parts": {"growth": {"records": [*records, other]}}}
    got = tables.fill("<!-- why:grow -->\nold\n<!-- /why:grow -->", run, "a link")
    assert "| <grow> | 4.0 MB | 2.50 | 8.0 MB |" in got
    assert "old" not in got
    assert "9.00" not in got


def committed() -> dict[str, Any]:
    (file,) = set(re.findall(r"Every record is in \[[^]]+\]\((bench/[^)]+)\)", DOC.read_text()))
    found: dict[str, Any] = json.loads((DOC.parent / file).read_text())
    return found


def test_the_page_shows_the_committed_run(tables: Any) -> None:
    text = DOC.read_text()
    file = re.findall(r"Every record is in (\[[^]]+\]\([^)]+\))", text)[0]
    assert tables.fill(text, committed(), file) == text


def test_the_bars_show_the_committed_run(tables: Any) -> None:
    drawn = tables.draw(committed())
    assert tables.PICTURE.read_text() == drawn
    texts = [node.text for node in ElementTree.fromstring(drawn).iter() if node.text]
    for record in tables.seed_job(committed()).values():
        if record["title"] in texts:
            assert f"{record['peak']:.2f}" in texts


def test_main_explains_itself(tables: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main([]) == 2
    assert "why_tables.py" in capsys.readouterr().out
