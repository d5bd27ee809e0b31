"""Draws the sweep of a run: wall time over the size of a job, and over its number of entries.

    python -m goflat bench plot docs/bench/FILE.json      writes docs/plots/sweep-<device>.svg

The image names the file that it was drawn from. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .compare import UNUSABLE, Unusable, read
from .report import size
from .sweep import BYTES, COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    Record = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "docs" / "plots"


class Style(NamedTuple):
    """How a way is drawn, and what it is called."""

    title: str
    colour: str
    line: str
    width: float
    mark: str


# Okabe and Ito's colours, which the colour-blind tell apart; memcpy is no rival, so grey.
STYLES = {
    "copy": Style("memcpy", "#777777", "--", 1.4, ""),
    "loop": Style("torch.cat in a loop", "#E69F00", "-", 1.6, "s"),
    "zip": Style("torch.cat over zip", "#CC79A7", "-", 1.6, "^"),
    "split": Style("one torch.cat, then split", "#56B4E9", "-", 1.6, "D"),
    "goflat packed": Style("goflat, packed", "#009E73", "-", 2.0, "o"),
    "goflat": Style("goflat", "#D55E00", "-", 2.6, "o"),
}


def main(argv: Sequence[str]) -> int:
    """Draw; 2 if there is nothing to draw, or nothing to draw with."""
    parser = argparse.ArgumentParser(
        prog="python -m goflat bench plot", description="Draw the sweep of a run as SVG."
    )
    parser.add_argument("run", type=Path, help="a JSON file of 'bench'")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: in docs/plots")
    args = parser.parse_args(argv)
    try:
        run = read(args.run)
        if not find_spec("matplotlib"):
            raise Unusable("drawing needs matplotlib: pip install matplotlib")
        points = _points(run, args.run)
    except Unusable as why:
        print(f"goflat bench plot: {why}", file=sys.stderr)
        return UNUSABLE
    device = "cuda" if "gpu" in run["machine"] else "cpu"
    target = args.to or FOLDER / f"sweep-{device}.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    draw(run, points, args.run.name, target)
    print(target)
    return 0


def _points(run: Record, path: Path) -> list[Record]:
    points = [point for point in run.get("sweep", ()) if "ways" in point]
    if not points:
        raise Unusable(f"{path} has no sweep")
    return points


def draw(run: Record, points: Sequence[Record], source: str, target: Path) -> None:
    """Write both curves side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Letters stay text, and the same run gives the same file.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "goflat", "font.size": 10}
    with pyplot.rc_context({**settings, "font.family": "sans-serif"}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True)
        _curve(left, points, "bytes", f"total size, {COUNT} entries")
        _curve(right, points, "entries", f"entries, {size(BYTES)} in all")
        left.set_ylabel("wall time of a call")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="lower center", ncol=6, frameon=False)
        figure.suptitle(_title(run), x=0.01, ha="left", fontsize=11)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        about = {"Date": None, "Title": "Wall time over size and number of entries"}
        figure.savefig(target, metadata={**about, "Source": source})
        pyplot.close(figure)


def _curve(axes: Any, points: Sequence[Record], axis: str, label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    mine = sorted((p for p in points if p["axis"] == axis), key=lambda p: int(p[axis]))
    for name, style in STYLES.items():
        here = [p for p in mine if name in p["ways"]]
        times = [p["ways"][name]["median_s"] for p in here]
        axes.plot(
            [p[axis] for p in here],
            times,
            label=style.title,
            color=style.colour,
            linestyle=style.line,
            linewidth=style.width,
            marker=style.mark,
            markersize=4,
        )
    axes.set_xscale("log", base=2 if axis == "bytes" else 10)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    if axis == "bytes":
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=11, subs=(1,)))
        axes.set_xticks([1 << n for n in range(10, 31, 5)])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: size(n)))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda s, _: duration(s)))
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def duration(seconds: float) -> str:
    """Return a time in words."""
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least * 0.999:
            return f"{seconds / least:g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _title(run: Record) -> str:
    machine = run["machine"]
    on = (
        machine["gpu"]["name"]
        if "gpu" in machine
        else f"{machine['cpu']}, {machine['cores']} cores"
    )
    return f"{on}; torch {machine['versions']['torch']}, {machine['date'][:10]}"
