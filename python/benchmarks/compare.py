"""Two runs side by side: what became worse, in all sections that both have.

Only what is goflat's decides: times over those of the best other way of the same run, or over
memcpy, which a slower machine changes as well; bytes and counts; goals of memory. A number is worse
if it rose by more than the tolerance and by more than the quartiles of both runs allow.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .machine import BUSY
from .report import show
from .ways import CONTRACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Record = dict[str, Any]

TOLERANCE = 0.1
UNUSABLE = 2
IMPORT_NOISE = 0.15  # of a process that starts; that of both runs counts
FEW = 0.25  # of a byte or a count: less is chance


class Unusable(Exception):
    """A file that holds no run, or two runs that have nothing in common."""


class Number(NamedTuple):
    """Something that is better if it is less, and half the width of its quartiles over it."""

    value: float
    noise: float = 0.0


class Change(NamedTuple):
    """A number of both runs."""

    section: str
    name: str
    before: Number
    after: Number

    def verdict(self, tolerance: float) -> str:
        """Return better, worse or same."""
        old, new = self.before.value, self.after.value
        allowed = max(tolerance, self.before.noise + self.after.noise)
        if abs(new - old) <= max(allowed * abs(old), 1e-12):
            return "same"
        return "worse" if new > old else "better"


def main(argv: Sequence[str]) -> int:
    """Print what changed: 0 if nothing became worse, 1 if something did, 2 without two runs."""
    parser = argparse.ArgumentParser(
        prog="python -m goflat bench compare",
        description="Show what changed between two runs; exit with 1 if something became worse.",
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="SHARE",
        help="what a number may rise by (%(default)s)",
    )
    parser.add_argument("--all", action="store_true", help="show what stayed the same as well")
    args = parser.parse_args(argv)
    try:
        before, after = read(args.before), read(args.after)
        found = changes(before, after)
    except Unusable as why:
        print(f"goflat bench compare: {why}", file=sys.stderr)
        return UNUSABLE
    show(report(before, after, found, args.tolerance, every=args.all), sys.stdout)
    return int(any(change.verdict(args.tolerance) == "worse" for change in found))


def read(path: Path) -> Record:
    """Return the run that a file holds."""
    try:
        run = json.loads(path.read_text())
    except (OSError, ValueError) as why:
        raise Unusable(f"{path}: {why}") from None
    if not isinstance(run, dict) or not isinstance(run.get("machine"), dict):
        raise Unusable(f"{path} holds no run of the benchmarks")
    return run


def changes(before: Record, after: Record) -> list[Change]:
    """Return the numbers that both runs have."""
    kinds = ["GPU" if "gpu" in run["machine"] else "CPU" for run in (before, after)]
    if kinds[0] != kinds[1]:
        raise Unusable(f"one run is of a {kinds[0]}, the other of a {kinds[1]}")
    found: list[Change] = []
    for section, numbers in SECTIONS.items():
        try:
            old, new = (numbers(run, before) for run in (before, after))
        except (AttributeError, KeyError, TypeError, ZeroDivisionError) as why:
            raise Unusable(f"cannot read the section {section}: {why!r}") from None
        found += [Change(section, name, old[name], new[name]) for name in old if name in new]
    if not found:
        raise Unusable("the runs have nothing in common")
    return found


def report(
    before: Record, after: Record, found: Sequence[Change], tolerance: float, *, every: bool
) -> list[Any]:
    """Return tables and text."""
    rows = [["section", "", "before", "after", "change", "verdict"]]
    sums = [["section", "numbers", "better", "same", "worse"]]
    for section in dict.fromkeys(change.section for change in found):
        mine = [change for change in found if change.section == section]
        verdicts = [change.verdict(tolerance) for change in mine]
        counts = [str(verdicts.count(name)) for name in sums[0][2:]]
        sums.append([section, str(len(mine)), *counts])
        rows += [
            _row(change, verdict)
            for change, verdict in zip(mine, verdicts, strict=True)
            if every or verdict != "same"
        ]
    notes = [*_differences(before, after), *_only(before, after)]
    return [part for part in (rows, sums, "\n".join(notes)) if part[1:]]


def _row(change: Change, verdict: str) -> list[str]:
    old, new = change.before.value, change.after.value
    rise = f"{100 * (new / old - 1):+.1f} %" if old else ""
    return [change.section, change.name, f"{old:.4g}", f"{new:.4g}", rise, verdict]


# ---- the numbers of a section ----
# Each takes a run, and the first of both, whose best other way is what both are set against.


Numbers = dict[str, Number]


def _cases(run: Record, first: Record) -> Numbers:
    """Return goflat's time over that of the best other way."""
    best = {
        (case["title"], contract): ratio["best"]
        for case in first.get("cases", ())
        for contract, ratio in case["ratios"].items()
    }
    return {
        f"{case['title']}, {contract}": _over(case["ways"], CONTRACTS[contract].own, best[place])
        for case in run.get("cases", ())
        for contract in case["ratios"]
        if (place := (case["title"], contract)) in best and best[place] in case["ways"]
    }


def _extras(run: Record, _: Record) -> Numbers:
    """Return the import; the rest follows from the cases."""
    return {
        extra["name"]: Number(extra["seconds"], IMPORT_NOISE)
        for extra in run.get("extras", ())
        if "limit_s" in extra
    }


def _device(run: Record, _: Record) -> Numbers:
    found: Numbers = {}
    for job in run.get("device", ()):
        for state, floor in (("cold", "memcpy"), ("warm", "memcpy"), ("wall", "loop")):
            ways = job.get(state, {})
            for name in ways.keys() & {"goflat", "goflat out=", "goflat bound"}:
                found[f"{job['name']}, {state}, {name} / {floor}"] = _over(ways, name, floor)
    return dict(sorted(found.items()))


def _made(run: Record, _: Record) -> Numbers:
    """Return device memory and allocations of goflat."""
    return {
        f"{job['name']}, {kind}": Number(count)
        for job in run.get("device", ())
        for kind, count in job.get("memory", {}).get("goflat", {}).items()
    }


def _fresh(run: Record, _: Record) -> Numbers:
    return {
        f"{job['name']} / {way}": _over(job["ways"], "goflat fresh", way)
        for job in run.get("fresh", ())
        for way in ("goflat", "zip fresh")
    }


def _sweep(run: Record, _: Record) -> Numbers:
    return {
        f"{point['entries']} entries, {point['bytes']} B, {own} / {other}": _over(
            point["ways"], own, other
        )
        for point in run.get("sweep", ())
        if "ways" in point
        for own, other in (("goflat", "zip"), ("goflat packed", "split"))
    }


def _allocations(run: Record, _: Record) -> Numbers:
    """Return what goflat's ways allocate on the host."""
    return {
        f"{job['title']}, {way}, {kind} {name}": Number(max(n, 1), FEW / max(n, 1))
        for record in run.get("allocations", ())
        for job in record["jobs"]
        for way, of in job["ways"].items()
        if way.startswith("goflat")
        for kind, counts in of.items()
        for name, n in counts.items()
    }


def _memory(run: Record, _: Record) -> Numbers:
    """Return goals, growth and failures of the parts of ``bench --memory``."""
    found: Numbers = {}
    for part, of in run.get("parts", {}).items():
        found[f"{part}, failed"] = Number(float("error" in of))
        for record in of["records"]:
            place = ", ".join(str(record[key]) for key in WHICH if key in record)
            found |= {f"{part}, {place}, {name}": n for name, n in _record(record)}
    return found


WHICH = ("mode", "kind", "job", "lies", "way", "entries")


def _record(record: Record) -> Iterator[tuple[str, Number]]:
    yield "failed", Number(float("error" in record or not record.get("succeeded", True)))
    for goal in record.get("goals", ()):
        yield goal["name"], Number(goal["value"])
    if "goflat" in str(record.get("way")) and "worst_peak" in record:
        yield "worst peak", Number(record["worst_peak"])
    for state, n in record.get("states", {}).items():
        yield f"{state}, ratio", Number(n["ratio"])


SECTIONS: dict[str, Callable[[Record, Record], Numbers]] = {
    "cases": _cases,
    "extras": _extras,
    "device": _device,
    "device memory": _made,
    "fresh": _fresh,
    "sweep": _sweep,
    "allocations": _allocations,
    "memory": _memory,
}


def _over(ways: Record, own: str, other: str) -> Number:
    """Return one way's time over another's."""
    pair = (ways[own], ways[other])
    noise = sum(n["iqr_s"] / n["median_s"] for n in pair) / 2
    return Number(pair[0]["median_s"] / pair[1]["median_s"], noise)


# ---- what else differs ----


def _differences(before: Record, after: Record) -> list[str]:
    names = ("gpu", "cpu", "cores", "threads", "extension", "versions")
    old, new = before["machine"], after["machine"]
    found = [
        f"{name} differ: {old.get(name)} and {new.get(name)}"
        for name in names
        if old.get(name) != new.get(name)
    ]
    for which, run in (("first", before), ("second", after)):
        load = run.get("load", {}).get("before", 0)
        found += [f"The {which} run had a busy machine, load per core {load}"] * (load >= BUSY)
    return found


def _only(before: Record, after: Record) -> list[str]:
    """Return what one run has and the other lacks."""
    found = []
    for section, numbers in SECTIONS.items():
        names = [numbers(run, before).keys() for run in (before, after)]
        for which, lost in (("first", names[0] - names[1]), ("second", names[1] - names[0])):
            found += [f"{len(lost)} of {section} are only in the {which} run"] if lost else []
    return found
