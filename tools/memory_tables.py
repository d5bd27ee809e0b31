"""Fills the tables of docs/memory.md from a run of ``python -m goflat bench --memory``.

    python tools/memory_tables.py docs/bench/memory-h200-DATE.json [docs/memory.md]

A table stands between ``<!-- memory:NAME -->`` and ``<!-- /memory:NAME -->``; what is there is
replaced. Parts that the run lacks leave their tables as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "memory.md"
MARKED = re.compile(r"(<!-- memory:(\w+) -->\n).*?(<!-- /memory:\2 -->)", re.DOTALL)

Record = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Rewrite the file and say which tables have been filled."""
    return rewrite(arguments, DOC, fill, str(__doc__))


def rewrite(
    arguments: list[str],
    doc: Path,
    fill: Callable[[str, Record, str], tuple[str, list[str]]],
    usage: str,
) -> int:
    """Do what the command line says: a run, and perhaps another document than `doc`."""
    if not 1 <= len(arguments) <= 2:
        print(usage)
        return 2
    path = Path(arguments[0]).resolve()
    doc = Path(arguments[1]) if len(arguments) > 1 else doc
    text, filled = fill(doc.read_text(), json.loads(path.read_text()), link(path, doc))
    doc.write_text(text)
    print(f"{doc.name}: {', '.join(filled) or 'nothing'}")
    return 0


def link(path: Path, doc: Path) -> str:
    """Return a link to the run, or just its name where it lies elsewhere than the document."""
    folder = doc.resolve().parent
    if not path.is_relative_to(folder):
        return path.name
    return f"[{path.name}]({path.relative_to(folder)})"


def fill(text: str, run: Record, where: str) -> tuple[str, list[str]]:
    """Return the text with its tables filled, and the names of those that were."""
    filled: list[str] = []

    def replace(found: re.Match[str]) -> str:
        name = found[2]
        body = source(run, where) if name == "source" else _of(TABLES[name], run, name)
        if not body:
            return found[0]
        filled.append(name)
        return f"{found[1]}{body}\n{found[3]}"

    return MARKED.sub(replace, text), filled


def _of(make: Callable[[list[Record]], str], run: Record, name: str) -> str:
    part = run["parts"].get(PARTS.get(name, name), {})
    records = [record for record in part.get("records", ()) if "error" not in record]
    return make(records) if records else ""


# ---- tables ----


def ways(records: list[Record]) -> str:
    """Return peak and time of each way, by job."""
    found = [r for r in records if r["kind"] == "ways" and r["mode"] == "default"]
    jobs = list(dict.fromkeys(r["job"] for r in found))
    cells = {(r["title"], r["job"]): r for r in found}
    head = ["way", *(f"peak, {job}" for job in jobs), f"time, {jobs[0]}"] if jobs else []
    rows = []
    for title in dict.fromkeys(r["title"] for r in found):
        line = [cells.get((title, job)) for job in jobs]
        peaks = [_peak(record) for record in line]
        rows.append([title, *peaks, _time(line[0]["time"]) if line[0] else ""])
    return table(head, rows)


def _peak(record: Record | None) -> str:
    if record is None:
        return ""
    median, worst = f"{record['peak']:.2f}", f"{record['worst_peak']:.2f}"
    return median if median == worst else f"{median}, at worst {worst}"


def spread(records: list[Record]) -> str:
    """Return in how many draws growth is 0, by where entries lie."""
    found = [r for r in records if r["kind"] == "spread"]
    cells = {(r["job"], r["lies"], r["mode"]): r for r in found}
    places = [
        ("one by one", "plain", "default"),
        ("one by one, expandable_segments", "plain", "expandable_segments"),
        ("inside collect()", "collected", "default"),
    ]
    rows = []
    for job in dict.fromkeys(r["job"] for r in found):
        line = [cells.get((job, *place)) for _, *place in places]
        rows.append([job, *(_share(record) for record in line)])
    return table(["job", *(title for title, *_ in places)], rows)


def _share(record: Record | None) -> str:
    if record is None:
        return ""
    return f"{100 * record['zero']:.0f} %, {100 * record['spilled']:.0f} % of bytes anew"


def cap(records: list[Record]) -> str:
    """Return which ways succeed under the limit."""
    rows = []
    for r in records:
        if r["succeeded"]:
            growth = size(r["growth"]["requested"])
            rows.append([r["way"], "works", growth, seconds(r["seconds"])])
        else:
            rows.append([r["way"], r["why"].partition(":")[0], "", ""])
    return table(["way", "result", "growth", "time"], rows)


def collect(records: list[Record]) -> str:
    """Return what a context costs producers, and the device bytes besides torch's."""
    producers = [
        [f"{r['job']}, {r['way']}", f"{r['ratio']:.2f}", f"{r['first_extra_us']:.0f} µs"]
        for r in records
        if r["kind"] == "producers"
    ]
    besides = [
        [f"{r['job']}, {r['lies']}", size(r["tables"]), size(r["taken"])]
        for r in records
        if r["kind"] == "besides"
    ]
    growth = [
        f"Of {r['draws']} random jobs, made with temporaries, {r['zero']['requested']} grew by 0 B."
        for r in records
        if r["kind"] == "growth" and r["draws"]
    ]
    tables = (
        table(["producers", "time inside / outside", "first context, per 64 MiB"], producers),
        table(["joined", "tables, as planned", "taken from the device besides torch's"], besides),
        *growth,
    )
    return "\n\n".join(filter(None, tables))


def inplace(records: list[Record]) -> str:
    """Return device time next to a plain copy."""
    states = [state for state in ("cold", "warm") if any(state in r["states"] for r in records)]
    rows = [
        [
            r["job"],
            r["lies"],
            size(r["bytes"]),
            size(next(iter(r["growth"].values()))),
            size(r["tables"]),
            *(f"{r['states'][state]['ratio']:.2f}" for state in states),
            _time(r["plan"]),
        ]
        for r in records
    ]
    head = ["job", "entries", "bytes", "growth", "tables", *states, "planning, on the host"]
    return table(head, rows)


def prediction(records: list[Record]) -> str:
    """Return how often predictions were right."""
    rows = [
        [r["mode"], *(str(r[name]) for name in ("draws", "grew", "exact", "within", "bounded"))]
        for r in records
    ]
    head = ["allocator", "jobs", "that grew", "requested exact", "allocated within the rounding"]
    return table([*head, "reserved within the bound"], rows)


def source(run: Record, where: str) -> str:
    """Say what the numbers were measured on, and how."""
    machine = run["machine"]
    gpu, versions = machine.get("gpu"), machine["versions"]
    what = f"{gpu['name']}, driver {gpu['driver']}" if gpu else machine["cpu"]
    return (
        f"All numbers: {what}, torch {versions['torch']}, goflat {versions['goflat']}, "
        f"{machine['date'][:10]}, `{run['command']}`; medians. Every record is in {where}."
    )


TABLES: dict[str, Callable[[list[Record]], str]] = {
    "ways": ways,
    "spread": spread,
    "cap": cap,
    "collect": collect,
    "inplace": inplace,
    "prediction": prediction,
}
PARTS = {"ways": "growth", "spread": "growth"}  # of the run, where it is named otherwise


# ---- words ----


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown; nothing if it has no rows."""
    if not rows:
        return ""
    rule = ["---"] * len(head)
    return "\n".join(_line(cells) for cells in (head, rule, *rows))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count:.0f} B"


def _time(numbers: Record) -> str:
    return seconds(numbers["median_s"])


def seconds(s: float) -> str:
    """Return a time in words, with three digits or so."""
    if s >= 1e-3:
        return f"{s * 1e3:.1f} ms"
    return f"{s * 1e6:.0f} µs" if s >= 1e-5 else f"{s * 1e6:.1f} µs"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
