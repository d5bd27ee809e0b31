"""A run as tables and text."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from .goals import goals
from .machine import BUSY
from .ways import CONTRACTS

if TYPE_CHECKING:
    from collections.abc import Sequence


Rows = list[list[str]]  # a table; the first row has the titles


def run(run: dict[str, Any]) -> list[str | Rows]:
    """Return a run as tables, and what stands between them."""
    rows = [["case", "outputs", "best other way", "µs", "goflat µs", "ratio", "copy µs"]]
    for case in run["cases"]:
        rows += [_row(case, contract) for contract in case["ratios"]]
    extras = "\n".join(_extra(extra) for extra in run["extras"])
    sections = [rows, *_gpu(run), *_sweep(run), *_allocations(run), *_timers(run)]
    parts = [part for part in (*sections, extras, *_goals(goals(run))) if part[1:]]
    return [head(run["machine"]), *parts, *_missing(run), *busy(run)]


def text(parts: Sequence[str | Rows]) -> str:
    """Return tables and text for whatever takes plain text."""
    return "\n\n".join(part if isinstance(part, str) else _align(part) for part in parts)


def show(parts: Sequence[str | Rows], to: TextIO) -> None:
    """Print tables and text; with lines and colours on a terminal, if rich is installed."""
    if not to.isatty() or not find_spec("rich"):
        print(text(parts), file=to)
        return
    from rich.console import Console

    console = Console(file=to, highlight=False)
    for part in parts:
        console.print(part if isinstance(part, str) else _rich(part), markup=False)


def _rich(rows: Rows) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, row_styles=["", "dim"])
    for title, number in zip(rows[0], _numeric(rows), strict=True):
        made.add_column(title, justify="right" if number else "left")
    for cells in rows[1:]:
        made.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return made


STYLES = {"missed": "bold red", "met": "green", "worse": "bold red", "better": "green"}


def _gpu(run: dict[str, Any]) -> list[str | Rows]:
    found: list[str | Rows] = []
    if "device" in run:
        jobs = [job for job in run["device"] if "skipped" not in job]
        skipped = [f"{job['name']}: {job['skipped']}" for job in run["device"] if "skipped" in job]
        found += [_device(jobs), _walls(jobs), _memory(jobs), *skipped]
    return [*found, _fresh(run["fresh"])] if "fresh" in run else found


SHOWN = ("goflat", "goflat bound", "loop", "graph", "foreach copy")


def _device(jobs: list[dict[str, Any]]) -> Rows:
    """Return device time over memcpy: cold for goflat and the others, warm for goflat."""
    ratios = [f"{name} ratio" for name in SHOWN]
    rows = [["device time", "about", "MB", "memcpy µs", *ratios, "goflat warm ratio"]]
    for job in jobs:
        cold, warm = job["cold"], job["warm"]
        cells = [job["name"], job["about"], f"{job['bytes'] / 1e6:.1f}", us(cold["memcpy"])]
        rows += [[*cells, *(_over(cold, name) for name in SHOWN), _over(warm, "goflat")]]
    return rows


def _over(ways: dict[str, Any], name: str) -> str:
    return f"{over_memcpy(ways, name):.3f}" if name in ways else ""


def over_memcpy(ways: dict[str, Any], name: str) -> float:
    """Return how many times as long as memcpy a way takes."""
    found: float = ways[name]["median_s"] / ways["memcpy"]["median_s"]
    return found


def _walls(jobs: list[dict[str, Any]]) -> Rows:
    rows = [["wall time", *(f"{name} µs" for name in SHOWN)]]
    for job in jobs:
        wall = job["wall"]
        rows += [[job["name"], *(us(wall[name]) if name in wall else "" for name in SHOWN)]]
    return rows


def _memory(jobs: list[dict[str, Any]]) -> Rows:
    kinds = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    titles = [f"{kind.split('_')[0]} ratio" for kind in kinds]
    rows = [["memory above the inputs, over their bytes", *titles, "loop's", "calls", "loop's"]]
    for job in jobs:
        own, loop = job["memory"]["goflat"], job["memory"]["loop"]
        cells = [f"{own[kind] / job['bytes']:.2f}" for kind in kinds]
        loops = f"{loop['reserved_bytes'] / job['bytes']:.2f}"
        rows += [[job["name"], *cells, loops, str(own["allocations"]), str(loop["allocations"])]]
    return rows


def _goals(found: list[dict[str, Any]]) -> list[str | Rows]:
    rows = [["goal", "got", "want", ""]]
    for goal in found:
        sign = "at least" if goal["least"] else "at most"
        verdict = "met" if goal["met"] else "missed"
        rows += [[goal["name"], f"{goal['got']:.3g}", f"{sign} {goal['want']:.3g}", verdict]]
    missed = sum(not goal["met"] for goal in found)
    return [rows, f"{len(found) - missed} of {len(found)} goals met"] if found else []


def _fresh(jobs: list[dict[str, Any]]) -> Rows:
    rows = [["layouts that change", "goflat µs", "same layout µs", "zip µs"]]
    for job in jobs:
        ways = job["ways"]
        rows += [[_size(job), *(us(ways[n]) for n in ("goflat fresh", "goflat", "zip fresh"))]]
    return rows


def _size(job: dict[str, Any]) -> str:
    rows = "..".join(map(str, dict.fromkeys((job["least"], job["most"]))))
    return f"{job['name']}: {job['keys']}x{job['batches']}x({rows} x {tuple(job['row_shape'])})"


def _sweep(run: dict[str, Any]) -> list[str | Rows]:
    points = [point for point in run.get("sweep", ()) if "ways" in point]
    rows = [["sweep", "entries", *(f"{name} µs" for name in SWEPT)]]
    for point in points:
        ways = point["ways"]
        cells = [us(ways[name]) for name in SWEPT]
        rows += [[size(point["bytes"]), str(point["entries"]), *cells]]
    return [rows]


SWEPT = ("goflat", "goflat packed", "loop", "zip", "split", "copy")


def size(count: float) -> str:
    """Return bytes in words, by powers of 1024."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GB"


def _allocations(run: dict[str, Any]) -> list[str | Rows]:
    """Return what a call allocates on the host."""
    head = ["on the host, a call", "way", "malloc calls", "bytes", "Go objects"]
    rows = [[*head, "Python blocks kept", "bytes kept", "most bytes"]]
    for record in run.get("allocations", ()):
        for job in record["jobs"]:
            for name, of in job["ways"].items():
                malloc, go, py = of.get("malloc"), of.get("go"), of["python"]
                cells = [_count(malloc, "calls"), _count(malloc, "bytes"), _count(go, "objects")]
                cells += [_count(py, f"{kind}") for kind in ("kept_blocks", "kept_bytes")]
                rows += [[job["title"], name, *cells, _count(py, "peak_bytes")]]
    return [rows]


def _count(of: dict[str, float] | None, name: str) -> str:
    return f"{of[name]:,.10g}" if of else ""


def _timers(run: dict[str, Any]) -> list[str | Rows]:
    """Return our times over those of libraries."""
    rows = [["clocks", "way", "wall µs", "Timer µs", "ratio", "device µs", "do_bench µs", "over"]]
    for job in run.get("timers", ()):
        for name in job["wall"]:
            cells = [*_both(job, name, "wall", "Timer"), *_both(job, name, "device", "do_bench")]
            rows += [[job["title"], name, *cells]]
    return [rows]


def _both(job: dict[str, Any], name: str, ours: str, theirs: str) -> list[str]:
    if ours not in job or theirs not in job:
        return ["", "", ""]
    mine, other = job[ours][name], job[theirs][name]
    return [f"{mine * 1e6:.1f}", f"{other * 1e6:.1f}", f"{mine / other:.2f}"]


def _missing(run: dict[str, Any]) -> list[str]:
    """Return what was not measured, and why: a reason once for all jobs that it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for section in ("cases", "timers", "allocations"):
        for record in run.get(section, ()):
            for way, why in record.get("not measured", {}).items():
                found.setdefault((way, why), []).append(record.get("title", section))
    lines = [f"{way} not measured: {why} ({', '.join(of)})" for (way, why), of in found.items()]
    return ["\n".join(lines)] if lines else []


def head(machine: dict[str, Any]) -> str:
    versions = machine["versions"]
    gpu = machine.get("gpu")
    on = f"{gpu['name']}, driver {gpu['driver']}, CUDA {versions['cuda']}; " if gpu else ""
    return (
        f"{on}{machine['cpu']}, {machine['cores']} cores, {machine['threads']['torch']} threads; "
        f"goflat {versions['goflat']} ({versions['commit']}), torch {versions['torch']}, "
        f"NumPy {versions['numpy']}; extension {machine['extension']}"
    )


def _row(case: dict[str, Any], contract: str) -> list[str]:
    ways, ratio = case["ways"], case["ratios"][contract]
    own, _, floor = CONTRACTS[contract]
    cells = [us(ways[ratio["best"]]), us(ways[own]), f"{ratio['ratio']:.2f}", us(ways[floor])]
    return [case["title"], contract, ratio["best"], *cells]


def _align(rows: Rows) -> str:
    """Return a table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = list(zip(widths, _numeric(rows), strict=True))
    lines = [
        [cell.rjust(w) if n else cell.ljust(w) for cell, (w, n) in zip(cells, columns, strict=True)]
        for cells in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _numeric(rows: Rows) -> list[bool]:
    """Tell which columns hold numbers: not the first, and each cell begins with a digit."""
    columns = list(zip(*rows[1:], strict=True))
    return [
        n > 0 and any(column) and all(not c or c.lstrip("+-")[:1].isdigit() for c in column)
        for n, column in enumerate(columns)
    ]


def us(numbers: dict[str, Any]) -> str:
    return f"{numbers['median_s'] * 1e6:.1f} ± {numbers['iqr_s'] * 1e6:.1f}"


def _extra(extra: dict[str, Any]) -> str:
    limit = f" (at most {extra['limit_s'] * 1e6:.0f})" if "limit_s" in extra else ""
    return f"{extra['name']}: {extra['seconds'] * 1e6:.1f} µs{limit}"


def busy(run: dict[str, Any]) -> list[str]:
    if run["load"]["before"] < BUSY:
        return []
    return [f"Busy machine (load per core {run['load']['before']}): draw no conclusions from this."]
