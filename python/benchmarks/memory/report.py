"""Runs as text: a table per part, with the goal beside each number that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report import busy, head, us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Record = dict[str, Any]
    Rows = list[list[str]]


def part(name: str, found: dict[str, Any]) -> str:
    """Return what a part has found, and what went wrong."""
    records = found["records"]
    fine = [record for record in records if "error" not in record]
    texts = [f"== {name}, {found.get('skipped') or str(found['seconds']) + ' s'}"]
    texts += [_align(rows) for rows in TABLES[name](fine) if len(rows) > 1]
    texts += [_align([["goal", "value", "at most", ""], *goals])] if (goals := _goals(fine)) else []
    texts += [f"FAILED: {text}" for text in errors({name: found})]
    return "\n\n".join(texts) + "\n"


def end(found: dict[str, Any]) -> str:
    """Return on what all was measured, and the goals that were missed."""
    records = [record for part in found["parts"].values() for record in part["records"]]
    goals = [goal for record in records for goal in record.get("goals", ())]
    missed = [goal for goal in goals if not goal["met"]]
    lines = [f"{len(goals) - len(missed)} of {len(goals)} goals met"]
    lines += [f"missed: {' '.join(_goal(goal))}" for goal in missed]
    lines += [f"FAILED: {text.splitlines()[0]}" for text in errors(found["parts"])]
    return "\n".join([head(found["machine"]), "", *lines, *busy(found)])


def errors(parts: dict[str, Any]) -> list[str]:
    """Return what failed: items, and processes that ended early."""
    found = []
    for name, one in parts.items():
        found += [f"{name}: {one['error']}"] if "error" in one else []
        for record in one["records"]:
            if "error" in record:
                words = (str(record[key]) for key in WHICH if key in record)
                found.append(f"{name}, {', '.join(words)}: {record['error']}")
    return found


WHICH = ("mode", "kind", "job", "lies", "way", "entries")


def _goals(records: Sequence[Record]) -> Rows:
    return [_goal(goal) for record in records for goal in record.get("goals", ())]


def _goal(goal: dict[str, Any]) -> list[str]:
    """Return the cells of a goal."""
    amounts = [_amount(goal[which], goal["unit"]) for which in ("value", "limit")]
    return [goal["name"], *amounts, "" if goal["met"] else "MISSED"]


def _amount(value: float, unit: str) -> str:
    digits = {"x": 3, "": 0, "B": 0}.get(unit, 1)
    return f"{value:,.{digits}f} {unit}".rstrip()


# ---- tables ----


def _growth(records: Sequence[Record]) -> list[Rows]:
    ways = [["mode", "job", "way", "peak", "worst", "growth, MB", "µs"]]
    for r in _of_kind(records, "ways"):
        peaks = [f"{r['peak']:.2f}", f"{r['worst_peak']:.2f}"]
        grown = " / ".join(f"{count / 1e6:.1f}" for count in r["growth"].values())
        ways.append([r["mode"], r["job"], r["title"], *peaks, grown, us(r["time"])])
    spreads = [["mode", "entries", "job", "zero growth", "spilled", "growth"]]
    for r in _of_kind(records, "spread"):
        shares = [f"{100 * r[name]:.0f} %" for name in ("zero", "spilled", "growth")]
        spreads.append([r["mode"], r["lies"], r["job"], *shares])
    return [ways, spreads]


def _timelines(records: Sequence[Record]) -> list[Rows]:
    rows = [["job", "way", "steps", "highest, MB", "at the end, MB"]]
    for r in records:
        kind = "allocated" if "allocated" in r["peak"] else "resident"
        numbers = [max(r["peak"][kind]) / 1e6, r["level"][kind][-1] / 1e6]
        steps = str(len(r["steps"]))
        rows.append([r["job"], r["title"], steps, *(f"{number:.1f}" for number in numbers)])
    return [rows]


def _inplace(records: Sequence[Record]) -> list[Rows]:
    head = ["job", "entries", "strategy", "tables, kB", "L2", "memcpy µs", "flatten_ µs"]
    rows = [[*head, "ratio", "whole µs", "host µs", "plan µs"]]
    for r in records:
        for state, n in r["states"].items():
            own, floor = (n["device"], n["memcpy"]) if "device" in n else (n["whole"], None)
            times = [us(floor or n["memcpy whole"]), us(own), f"{n['ratio']:.3f}"]
            rest = [us(n["whole"]), us(n["host"]), us(r["plan"])]
            tables = f"{r['tables'] / 1e3:.1f}"
            rows.append([r["job"], r["lies"], r["strategy"], tables, state, *times, *rest])
    return [rows]


def _prediction(records: Sequence[Record]) -> list[Rows]:
    names = ("mode", "draws", "grew", "with_held", "exact", "within", "bounded", "strategies")
    rows = [[name.replace("_", " ") for name in names]]
    return [rows + [[_words(r[name]) for name in names] for r in records]]


def _collect(records: Sequence[Record]) -> list[Rows]:
    draws = [["draws", "grew by 0 B", "strategies"]]
    for r in _of_kind(records, "growth"):
        draws.append([str(r["draws"]), _words(r["zero"]), _words(r["strategies"])])
    makers = [["producers", "way", "outside µs", "inside µs", "ratio", "first µs", "mapped, MB"]]
    for r in _of_kind(records, "producers"):
        times = [us(r["outside"]), us(r["inside"]), f"{r['ratio']:.3f}", us(r["first"])]
        makers.append([r["job"], r["way"], *times, f"{r['mapped'] / 1e6:.0f}"])
    besides = [["bytes of the driver", "entries", "tables", "taken", "again"]]
    for r in _of_kind(records, "besides"):
        counts = [str(r[name]) for name in ("tables", "taken", "again")]
        besides.append([r["job"], r["lies"], *counts])
    return [draws, makers, besides]


def _cap(records: Sequence[Record]) -> list[Rows]:
    rows = [["way", "joined, MB", "limit, MB", "outcome"]]
    for r in records:
        sizes = [f"{r[name] / 1e6:.0f}" for name in ("bytes", "cap")]
        grown = f"works, growth {_words(r['growth'])}" if r["succeeded"] else r["why"]
        rows.append([r["way"], *sizes, grown])
    return [rows]


def _ownership(records: Sequence[Record]) -> list[Rows]:
    survey = [["survey of", "entries", "ns each", "quick"]]
    for r in _of_kind(records, "survey"):
        survey.append([r["entries"], str(r["count"]), f"{r['ns']:.0f}", str(r["quick"])])
    plan = [["plan, ownership included", "entries", "µs"]]
    for r in _of_kind(records, "plan"):
        plan.append([r["job"], r["lies"], us(r["plan"])])
    return [survey, plan]


TABLES: dict[str, Callable[[Sequence[Record]], list[Rows]]] = {
    "growth": _growth,
    "timelines": _timelines,
    "inplace": _inplace,
    "prediction": _prediction,
    "collect": _collect,
    "cap": _cap,
    "ownership": _ownership,
}


def _align(rows: Rows) -> str:
    """Return a table, columns of numbers to the right."""
    columns: Rows = []
    for title, *cells in zip(*rows, strict=True):
        width = max(map(len, (title, *cells)))
        right = columns and all(cell.lstrip("-")[:1].isdigit() for cell in cells)
        place = str.rjust if right else str.ljust
        columns.append([place(text, width) for text in (title, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _words(value: Any) -> str:
    """Return a number, or those of a dict by name."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    return str(value)
