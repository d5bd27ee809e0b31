"""Fills the tables of docs/why.md, and draws its bars, from a run of ``bench --memory``.

    python tools/why_tables.py docs/bench/memory-h200-DATE.json

Tables stand between ``<!-- why:NAME -->`` and ``<!-- /why:NAME -->``; the bars are
docs/images/peak.svg.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from memory_tables import cap, link, size, source, table

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "why.md"
PICTURE = ROOT / "docs" / "images" / "peak.svg"
MARKED = re.compile(r"(<!-- why:(\w+) -->\n).*?(<!-- /why:\2 -->)", re.DOTALL)

Record = dict[str, Any]

# Which ways a table compares, by their names in the run.
WAYS = {
    "grow": ("grow", "grow, dropping", "cat", "flatten", "flatten_"),
    "batch": ("cat", "cat, dropping", "flatten", "flatten_", "collect", "arena"),
    "preallocate": ("preallocate", "preallocate, emptying", "flatten_", "collect", "arena"),
}
BARS = ("grow", "cat", "preallocate, emptying", "flatten", "flatten_", "collect", "arena")


def main(arguments: list[str]) -> int:
    """Rewrite the page and the picture."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    path = Path(arguments[0]).resolve()
    run = json.loads(path.read_text())
    DOC.write_text(fill(DOC.read_text(), run, link(path, DOC)))
    PICTURE.write_text(draw(run))
    return 0


def fill(text: str, run: Record, where: str) -> str:
    """Return the page with its tables filled."""

    def replace(found: re.Match[str]) -> str:
        return f"{found[1]}{_body(found[2], run, where)}\n{found[3]}"

    return MARKED.sub(replace, text)


def _body(name: str, run: Record, where: str) -> str:
    if name == "source":
        return source(run, where)
    if name == "cap":
        return cap(run["parts"]["cap"]["records"])
    ways = seed_job(run)
    rows = [
        [r["title"], size(r["growth"]["requested"]), f"{r['peak']:.2f}", size(_reserved(r))]
        for r in (ways[way] for way in WAYS[name])
    ]
    return table(["way", "memory grows by", "peak / inputs", "reserved grows by"], rows)


def _reserved(record: Record) -> int:
    reserved: int = record["growth"]["reserved"]
    return reserved


def seed_job(run: Record) -> dict[str, Record]:
    """Return the records of the seed job under torch's default allocator, by way."""
    records = run["parts"]["growth"]["records"]
    wanted = ("ways", "seed job", "default")
    return {r["way"]: r for r in records if (r["kind"], r.get("job"), r.get("mode")) == wanted}


# ---- bars ----

_LEFT, _WIDE, _HIGH, _UNIT = 300, 760, 30, 180  # pixels; _UNIT for the bytes of the inputs
_BELOW = 34


def draw(run: Record) -> str:
    """Return the bars: the inputs, and what comes on top of them at the worst moment."""
    ways = seed_job(run)
    lines = [_bar(ways[way], 8 + _HIGH * i) for i, way in enumerate(BARS)]
    high = 8 + _HIGH * len(BARS) + _BELOW
    x, bottom = _LEFT + _UNIT, 8 + _HIGH * len(BARS)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" '
            f'font-family="sans-serif" font-size="14">',
            "<!-- drawn by tools/why_tables.py -->",
            *lines,
            f'<line x1="{x}" y1="2" x2="{x}" y2="{bottom}" stroke="#333" stroke-dasharray="4 3"/>',
            f'<text x="{x}" y="{bottom + 20}" text-anchor="middle" fill="#333">'
            "the inputs themselves</text>",
            "</svg>\n",
        ]
    )


def _bar(record: Record, y: int) -> str:
    more = round(_UNIT * (record["peak"] - 1))
    title = escape(record["title"])
    ours = "goflat" in title
    return "\n".join(
        [
            f'<text x="{_LEFT - 10}" y="{y + 17}" text-anchor="end" fill="#222">{title}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{_UNIT}" height="22" fill="#b8c4ce"/>',
            f'<rect x="{_LEFT + _UNIT}" y="{y}" width="{more}" height="22" '
            f'fill="{"#00897b" if ours else "#c0552d"}"/>',
            f'<text x="{_LEFT + _UNIT + more + 8}" y="{y + 17}" fill="#222">'
            f"{record['peak']:.2f}</text>",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
