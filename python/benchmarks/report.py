"""Runs as text: one table per run, one for two of them."""

from __future__ import annotations

from typing import Any

from .goals import goals
from .machine import BUSY
from .ways import CONTRACTS


def table(run: dict[str, Any]) -> str:
    """Return a run as text."""
    rows = [["case", "outputs", "best other way", "µs", "goflat µs", "ratio", "copy µs"]]
    for case in run["cases"]:
        rows += [_row(case, contract) for contract in case["ratios"]]
    extras = [_extra(extra) for extra in run["extras"]]
    parts = [_align(rows), *_gpu(run), "\n".join(extras), _goals(goals(run))]
    return "\n\n".join([head(run["machine"]), *filter(None, parts), *busy(run)])


def _gpu(run: dict[str, Any]) -> list[str]:
    if "device" not in run:
        return []
    jobs = [job for job in run["device"] if "skipped" not in job]
    skipped = [f"{job['name']}: {job['skipped']}" for job in run["device"] if "skipped" in job]
    return [_device(jobs), _walls(jobs), _memory(jobs), *skipped, _fresh(run["fresh"])]


SHOWN = ("goflat", "goflat bound", "loop", "graph", "foreach copy")


def _device(jobs: list[dict[str, Any]]) -> str:
    """Return device time over memcpy: cold for goflat and the others, warm for goflat."""
    ratios = [f"{name} ratio" for name in SHOWN]
    rows = [["device time", "about", "MB", "memcpy µs", *ratios, "goflat warm ratio"]]
    for job in jobs:
        cold, warm = job["cold"], job["warm"]
        cells = [job["name"], job["about"], f"{job['bytes'] / 1e6:.1f}", us(cold["memcpy"])]
        rows += [[*cells, *(_over(cold, name) for name in SHOWN), _over(warm, "goflat")]]
    return _align(rows)


def _over(ways: dict[str, Any], name: str) -> str:
    return f"{over_memcpy(ways, name):.3f}" if name in ways else ""


def over_memcpy(ways: dict[str, Any], name: str) -> float:
    """Return how many times as long as memcpy a way takes."""
    found: float = ways[name]["median_s"] / ways["memcpy"]["median_s"]
    return found


def _walls(jobs: list[dict[str, Any]]) -> str:
    rows = [["wall time", *(f"{name} µs" for name in SHOWN)]]
    for job in jobs:
        wall = job["wall"]
        rows += [[job["name"], *(us(wall[name]) if name in wall else "" for name in SHOWN)]]
    return _align(rows)


def _memory(jobs: list[dict[str, Any]]) -> str:
    kinds = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    titles = [f"{kind.split('_')[0]} ratio" for kind in kinds]
    rows = [["memory above the inputs, over their bytes", *titles, "loop's", "calls", "loop's"]]
    for job in jobs:
        own, loop = job["memory"]["goflat"], job["memory"]["loop"]
        cells = [f"{own[kind] / job['bytes']:.2f}" for kind in kinds]
        loops = f"{loop['reserved_bytes'] / job['bytes']:.2f}"
        rows += [[job["name"], *cells, loops, str(own["allocations"]), str(loop["allocations"])]]
    return _align(rows)


def _goals(found: list[dict[str, Any]]) -> str:
    rows = [["goal", "got", "want", ""]]
    for goal in found:
        sign = "at least" if goal["least"] else "at most"
        verdict = "met" if goal["met"] else "missed"
        rows += [[goal["name"], f"{goal['got']:.3g}", f"{sign} {goal['want']:.3g}", verdict]]
    missed = sum(not goal["met"] for goal in found)
    return _align(rows) + f"\n{len(found) - missed} of {len(found)} goals met" if found else ""


def _fresh(jobs: list[dict[str, Any]]) -> str:
    rows = [["layouts that change", "goflat µs", "same layout µs", "zip µs"]]
    for job in jobs:
        ways = job["ways"]
        rows += [[_size(job), *(us(ways[n]) for n in ("goflat fresh", "goflat", "zip fresh"))]]
    return _align(rows)


def _size(job: dict[str, Any]) -> str:
    rows = "..".join(map(str, dict.fromkeys((job["least"], job["most"]))))
    return f"{job['name']}: {job['keys']}x{job['batches']}x({rows} x {tuple(job['row_shape'])})"


def compare(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, bool]:
    """Return two runs side by side, and whether anything has become slower.

    Ratios decide: `drift` is how the best other way changed between the runs, and what it shares
    with goflat is the machine's.
    """
    rows = [
        ["case", "outputs", "goflat µs", "then µs", "drift x", "ratio", "then ratio", "goflat is"]
    ]
    earlier = {case["title"]: case for case in before["cases"]}
    for case in after["cases"]:
        if case["title"] in earlier:
            then = earlier[case["title"]]
            both = [name for name in case["ratios"] if name in then["ratios"]]
            rows += [_change(then, case, contract) for contract in both]
    notes = _differences(before["machine"], after["machine"])
    text = "\n".join([_align(rows), "", *notes, *busy(before), *busy(after)]).rstrip()
    return text, any(row[-1] == "slower" for row in rows)


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


def _align(rows: list[list[str]]) -> str:
    """Return a table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    number = ["µs" in title or "ratio" in title or "drift" in title for title in rows[0]]
    columns = list(zip(widths, number, strict=True))
    lines = [
        [cell.rjust(w) if n else cell.ljust(w) for cell, (w, n) in zip(cells, columns, strict=True)]
        for cells in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def us(numbers: dict[str, Any]) -> str:
    return f"{numbers['median_s'] * 1e6:.1f} ± {numbers['iqr_s'] * 1e6:.1f}"


def _extra(extra: dict[str, Any]) -> str:
    limit = f" (at most {extra['limit_s'] * 1e6:.0f})" if "limit_s" in extra else ""
    return f"{extra['name']}: {extra['seconds'] * 1e6:.1f} µs{limit}"


def busy(run: dict[str, Any]) -> list[str]:
    if run["load"]["before"] < BUSY:
        return []
    return [f"Busy machine (load per core {run['load']['before']}): draw no conclusions from this."]


def _change(before: dict[str, Any], after: dict[str, Any], contract: str) -> list[str]:
    """Return the row of a case; a ratio has changed if it did by more than the quartiles allow."""
    own, best = CONTRACTS[contract].own, before["ratios"][contract]["best"]
    pairs = [(case["ways"][best], case["ways"][own]) for case in (before, after)]
    ratios = [other["median_s"] / mine["median_s"] for other, mine in pairs]
    noise = sum(n["iqr_s"] / n["median_s"] for pair in pairs for n in pair) / 2
    change = ratios[1] / ratios[0]
    verdict = "as fast" if abs(change - 1) <= noise else "faster" if change > 1 else "slower"
    drift = pairs[1][0]["median_s"] / pairs[0][0]["median_s"]
    numbers = [drift, *ratios]
    cells = [us(mine) for _, mine in pairs] + [f"{number:.2f}" for number in numbers]
    return [after["title"], contract, *cells, verdict]


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = ("cpu", "cores", "threads", "extension", "versions")
    return [
        f"{name} differ: {before[name]} and {after[name]}"
        for name in names
        if before[name] != after[name]
    ]
