"""Fills the tables of docs/performance.md from runs of ``python -m goflat bench``.

    python tools/performance_tables.py docs/bench/h200-DATE.json [docs/performance.md]

A table stands between ``<!-- gpu:NAME -->`` and ``<!-- /gpu:NAME -->``, or ``cpu:`` for runs on a
CPU; what is there is replaced. A run fills those of its own device, as far as it has measured what
they show, so the document takes a run of each device, or more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from memory_tables import rewrite, seconds, size, source, table

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "performance.md"
MARKED = r"(<!-- {0}:(\w+) -->\n).*?(<!-- /{0}:\2 -->)"

Record = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Rewrite the file and say which tables have been filled."""
    return rewrite(arguments, DOC, fill, str(__doc__))


def fill(text: str, run: Record, where: str) -> tuple[str, list[str]]:
    """Return the text with its tables filled, and the names of those that were."""
    kind = "gpu" if "gpu" in run["machine"] else "cpu"
    filled: list[str] = []

    def replace(found: re.Match[str]) -> str:
        name = found[2]
        if not run.get(SECTIONS[name]):
            return found[0]
        body = source(run, where) if name in SOURCES else TABLES[name](run)
        filled.append(f"{kind}:{name}")
        return f"{found[1]}{body}\n{found[3]}"

    marked = re.compile(MARKED.format(kind), re.DOTALL)
    return marked.sub(replace, text), filled


# ---- tables ----


def device(run: Record) -> str:
    """Return device time over memcpy, cold, and goflat's warm."""
    ways = ("goflat", "goflat bound", "loop", "foreach copy")
    rows = [
        [
            job["name"],
            job["about"],
            size(job["bytes"]),
            seconds(job["cold"]["memcpy"]["median_s"]),
            *(_over(job["cold"], name) for name in ways),
            _over(job["warm"], "goflat"),
        ]
        for job in _measured(run)
    ]
    head = ["job", "entries", "bytes", "memcpy", *ways, "goflat, warm"]
    return table(["`torch.cat` loop" if name == "loop" else name for name in head], rows)


def walls(run: Record) -> str:
    """Return wall time of the jobs of `device`."""
    ways = ("goflat", "goflat bound", "loop", "graph")
    rows = [[job["name"], *(_time(job["wall"], name) for name in ways)] for job in _measured(run)]
    return table(["job", "goflat", "goflat bound", "`torch.cat` loop", "its CUDA graph"], rows)


def memory(run: Record) -> str:
    """Return what calls add to the memory of their inputs."""
    rows = []
    for job in _measured(run):
        own, loop = (job["memory"][name] for name in ("goflat", "loop"))
        levels = ("requested_bytes", "reserved_bytes")
        shares = [f"{m[level] / job['bytes']:.2f}" for m in (own, loop) for level in levels]
        rows.append([job["name"], *shares, str(own["allocations"]), str(loop["allocations"])])
    head = ["job", "requested", "reserved", "loop, requested", "loop, reserved"]
    return table([*head, "allocations", "loop, allocations"], rows)


def ways(run: Record) -> str:
    """Return wall time by contract against the best other way."""
    rows = []
    for case in run["cases"]:
        for contract, ratio in case["ratios"].items():
            best, own = case["ways"][ratio["best"]], case["ways"][OWN[contract]]
            times = [seconds(best["median_s"]), seconds(own["median_s"])]
            rows.append([case["title"], contract, ratio["best"], *times, f"{ratio['ratio']:.2f}"])
    return table(["job", "outputs", "best other way", "its time", "goflat", "ratio"], rows)


def fresh(run: Record) -> str:
    """Return wall time of layouts that change."""
    ways = ("goflat fresh", "goflat", "zip fresh")
    rows = [[job["name"], *(_time(job["ways"], name) for name in ways)] for job in run["fresh"]]
    return table(["job", "another layout each time", "the same one", "`torch.cat` by `zip`"], rows)


def goals(run: Record) -> str:
    """Return what the numbers should be."""
    rows = [
        [
            goal["name"],
            f"{goal['got']:.3g}",
            f"{'at least' if goal['least'] else 'at most'} {goal['want']:.3g}",
            "met" if goal["met"] else "**missed**",
        ]
        for goal in run["goals"]
    ]
    return table(["goal", "got", "want", ""], rows)


def allocations(run: Record) -> str:
    """Return what a call allocates on the host."""
    rows = []
    for job in (job for record in run["allocations"] for job in record["jobs"]):
        for name in ("goflat", "goflat bound", "loop", "split", "foreach copy"):
            of = job["ways"][name]
            native = [_count(of.get("malloc"), "calls"), _count(of.get("malloc"), "bytes")]
            kept = [_count(of["python"], key) for key in ("kept_blocks", "peak_bytes")]
            rows.append([job["title"], name, *native, _count(of.get("go"), "objects"), *kept])
    head = ["job", "way", "malloc calls", "malloc bytes", "Go objects", "Python blocks kept"]
    return table([*head, "most Python bytes"], rows)


def clocks(run: Record) -> str:
    """Return our times beside those of libraries."""
    pairs = [("wall", "Timer")]
    pairs += [("device", "do_bench")] if any("do_bench" in job for job in run["timers"]) else []
    rows = []
    for job in run["timers"]:
        for name in job["wall"]:
            cells: list[str] = []
            for ours, theirs in pairs:
                mine, other = job[ours][name], job[theirs][name]
                cells += [seconds(mine), seconds(other), f"{mine / other:.2f}"]
            rows.append([job["title"], "memcpy" if name == "copy" else name, *cells])
    titles = {"wall": "wall, ours", "device": "device, ours"}
    head = [title for ours, theirs in pairs for title in (titles[ours], f"`{theirs}`", "ratio")]
    return table(["job", "way", *head], rows)


TABLES: dict[str, Callable[[Record], str]] = {
    "device": device,
    "walls": walls,
    "memory": memory,
    "ways": ways,
    "fresh": fresh,
    "goals": goals,
    "allocations": allocations,
    "clocks": clocks,
}
SOURCES = ("source", "extras")  # of runs of the jobs, and of what is measured besides
SECTIONS = {  # of a run, that a table needs
    "device": "device",
    "walls": "device",
    "memory": "device",
    "ways": "cases",
    "fresh": "fresh",
    "goals": "goals",
    "allocations": "allocations",
    "clocks": "timers",
    "source": "cases",
    "extras": "sweep",
}
OWN = {
    "separate": "goflat",
    "packed": "goflat packed",
    "given": "goflat out=",
    "same again": "goflat bound",
}


# ---- words ----


def _measured(run: Record) -> list[Record]:
    return [job for job in run["device"] if "skipped" not in job]


def _over(ways: Record, name: str) -> str:
    if name not in ways:
        return ""
    return f"{ways[name]['median_s'] / ways['memcpy']['median_s']:.3f}"


def _count(of: Record | None, name: str) -> str:
    return f"{of[name]:,.0f}" if of else ""


def _time(ways: Record, name: str) -> str:
    return seconds(ways[name]["median_s"]) if name in ways else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
