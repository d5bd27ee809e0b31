"""``python -m goflat demo``: what flattening costs, measured here and explained.

Each way runs in a fresh process, so that none profits from memory another one has left behind.
The processes are forked from a server that has imported torch and nothing else.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from . import _show

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
WIDTH = 92
BAR = 40  # blocks of the longest bar
PRINTED = "-"  # --json without a file

HELP = """\
Measures what joining a small job costs, each way in a fresh process: memory, time, and whether the
result equals torch.cat's bit for bit. Ends with the peak of torch.cat next to that of flatten_."""

MORE = """\
examples:
  python -m goflat demo --device cpu --rows 10
  python -m goflat demo --json > demo.json

exit codes:
  0  all ways gave the same, bit for bit
  1  one did not
  2  it cannot run: no torch, no such device, wrong options"""

OWN = """\
Your own dict, features[key][batch], in place:

    import goflat
    print(goflat.plan(features, inplace=True))  # what it will take, and who holds what
    flat = goflat.flatten_(features, max_growth=0)  # refuses rather than take memory

If the plan says that memory grows, {cure}"""
CURES = {
    "cuda": "make the entries inside `with goflat.collect():`.",
    "cpu": "let entries be parts of one tensor, or use a goflat.Arena.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``demo``."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    parser.add_argument(
        "--rows", type=_at_least_one, default=50, help="rows of each entry (default: 50)"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const=PRINTED,
        type=_file,
        help="print the numbers as JSON, not text; with FILE, print text and write them there",
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _file(text: str) -> str:
    """Find out before all is measured whether a file can be made there."""
    if text != PRINTED and not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{str(Path(text).parent)!r} is no folder")
    return text


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 if all ways agree bit for bit, 1 if not, 2 if it cannot run."""
    if find_spec("torch") is None:
        print("goflat demo compares with torch.cat and needs torch: pip install torch")
        return 2
    try:
        with _show.progress(sys.stderr) as step:
            step("starting torch", 0)
            setting = _fresh("setting", args.device, args.rows)
            result = run(setting, args.device, args.rows, step)
    except (RuntimeError, ValueError, AssertionError) as error:  # the last: torch without CUDA
        print(f"goflat demo cannot run: {error}")
        return 2
    _print(result, args.json)
    return 0 if result["equal"] else 1


def _print(result: dict[str, Any], file: str | None) -> None:
    numbers = json.dumps(result, indent=2)
    if file == PRINTED:
        print(numbers)
        return
    _show.show(parts(result), sys.stdout)
    if file is not None:
        Path(file).write_text(numbers + "\n")


def run(
    setting: dict[str, Any], device: str | None, rows: int, step: _show.Step = _show.quiet
) -> dict[str, Any]:
    """Measure all ways, and say so to `step`.

    Returns
    -------
    dict
        As ``--json`` writes it: `setting`, ``equal`` and ``ways``, in bytes and seconds.
    """
    step("timing all ways in turns", 0.1)
    seconds = _fresh("times", device, rows)
    ways = {}
    for n, way in enumerate(seconds):
        step(f"memory of {_TITLES[way]}", 0.3 + 0.7 * n / len(seconds))
        ways[way] = {**_fresh("memory", way, device, rows)._asdict(), "seconds": seconds[way]}
    equal = all(numbers["equal"] for numbers in ways.values())
    return {**setting, "equal": equal, "ways": ways}


def _fresh(task: str, *arguments: Any) -> Any:
    """Run a task of `_demo_run` in a process of its own and return what it returns."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # the slow part, once
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_task, task, *arguments).result()


def _task(name: str, *arguments: Any) -> Any:
    from . import _demo_run

    function: Callable[..., Any] = getattr(_demo_run, name)
    return function(*arguments)


# ---- text ----


def report(result: dict[str, Any]) -> str:
    """Return what the demo prints, as plain text."""
    return _show.text(parts(result))


def parts(result: dict[str, Any]) -> list[_show.Part]:
    """Return what the demo prints."""
    head: list[_show.Part] = [_head(result), _table(result), _how(result)]
    return [*head, *_answers(result), *_proof(result)]


def _head(result: dict[str, Any]) -> str:
    env, job, inputs = result["environment"], result["job"], _any(result)["inputs"]
    shape = ", ".join(map(str, job["shape"]))
    return (
        f"goflat {env['goflat']}, torch {env['torch']}, {env['device']}; "
        f"extension {env['extension']}\n"
        f"{job['keys']} keys x {job['batches']} batches of ({shape}) {job['dtype']}: "
        f"the inputs hold {_mib(inputs)}"
    )


_TITLES = {
    "grow": "torch.cat, key after key",
    "preallocate": "preallocate, copy slices",
    "cat": "torch.cat per batch",
    "goflat": "goflat.flatten",
    "consume": "goflat.flatten_",
    "parts": "goflat.flatten_, parts of one",
    "collect": "goflat.flatten_, collected",
}


def _table(result: dict[str, Any]) -> _show.Table:
    extra = list(_any(result)["extra"])
    titles = ["way", "growth", *extra, "peak / inputs", "median", "equals torch.cat"]
    rows = []
    for way, n in result["ways"].items():
        cells = [_mib(n["growth"]), *(_mib(n["extra"][name]) for name in extra), f"{_peak(n):.2f}x"]
        equal = "bit for bit" if n["equal"] else "NO"
        rows.append([_TITLES[way], *cells, f"{n['seconds'] * 1e3:.2f} ms", equal])
    return _show.Table(rows, titles)


def _how(result: dict[str, Any]) -> str:
    return _paragraph(
        f"Growth is how far memory rose above the level with the inputs there, measured by "
        f"{_any(result)['method']}; peak is inputs + growth. Times are medians of calls in turns "
        f"in one process."
    )


def _answers(result: dict[str, Any]) -> list[str]:
    return [_first_key(result), _afterwards(result), _what_avoids_it(result), _below_two(result)]


def _first_key(result: dict[str, Any]) -> str:
    grow = result["ways"]["grow"]
    return _paragraph(
        f"Why does the first key cost nothing? Because nothing happens: `out = x` is a second name "
        f"for the first key's {_mib(grow['inputs'] / result['job']['keys'])}, not a copy. Memory "
        f"rose by {_mib(grow['steps'][0])}."
    )


def _afterwards(result: dict[str, Any]) -> str:
    grow, keys = result["ways"]["grow"], result["job"]["keys"]
    outputs = grow["inputs"]
    marks = ", ".join(map(_mib, grow["steps"][1:]))
    copied = outputs / keys * sum(range(2, keys + 1))  # key n copies the rows of keys 1 to n
    return _paragraph(
        f"Why does it grow afterwards? torch.cat cannot lengthen a tensor. Each further key makes "
        f"new results of all rows so far, while the old ones and the dict are still there: after "
        f"keys 2 to {keys} the high-water mark stood at {marks}. The results themselves are "
        f"{_mib(outputs)}; what exceeds that is old results beside new ones. At the end the "
        f"allocator kept {_mib(grow['held'] - outputs)} more than the results, and "
        f"{_mib(copied)} had been copied to deliver {_mib(outputs)}."
    )


def _what_avoids_it(result: dict[str, Any]) -> str:
    ways = result["ways"]
    pre, cat, own = ways["preallocate"], ways["cat"], ways["goflat"]
    return _paragraph(
        f"What avoids it? Knowing the final sizes before the first copy. Preallocated outputs "
        f"peaked at {_peak(pre):.2f}x of the inputs, one torch.cat per batch at {_peak(cat):.2f}x, "
        f"goflat.flatten at {_peak(own):.2f}x: inputs and outputs side by side, which is the least "
        f"while the inputs are kept; emptying a cache afterwards does not lower a peak that has "
        f"been. goflat checks the whole job first and then moves each byte once, all batches in "
        f"one call: {_ms(own)} here, against {_ms(cat)} for torch.cat per batch and {_ms(pre)} "
        f"for copying slices."
    )


def _below_two(result: dict[str, Any]) -> str:
    ways = result["ways"]
    apart, parts = ways["consume"], ways["parts"]
    return _paragraph(
        f"And if the inputs are not needed afterwards? goflat.flatten_ consumes them: it lays the "
        f"outputs into their memory. Entries that are parts of one tensor peaked at "
        f"{_peak(parts):.2f}x ({_said(parts)}), {_collected(result)}entries made one by one at "
        f"{_peak(apart):.2f}x ({_said(apart)}). Where the memory of entries does not adjoin, "
        f"outputs are made one after the other, and the entries of each given up after it. Before "
        f"anything moves, goflat.plan(features, inplace=True) says what it will be, and "
        f"max_growth= limits it."
    )


def _collected(result: dict[str, Any]) -> str:
    numbers = result["ways"].get("collect")
    if numbers is None:  # on a CPU
        return ""
    return f"those made inside goflat.collect() at {_peak(numbers):.2f}x ({_said(numbers)}), "


def _proof(result: dict[str, Any]) -> list[_show.Part]:
    """Return the last screen: what torch.cat and `flatten_` need at the worst moment."""
    ways = result["ways"]
    best = next(way for way in ("collect", "parts") if way in ways)
    shown = {_TITLES[way]: ways[way] for way in ("cat", best)}
    most = max(map(_peak, shown.values()))
    bars = [
        [title, f"{n['inputs'] + n['growth']:,} B", _show.BLOCK * round(BAR * _peak(n) / most)]
        for title, n in shown.items()
    ]
    return [
        f"Peak memory, of {_any(result)['inputs']:,} B of inputs:",
        _show.Table(bars, left=(0, 2)),
        _paragraph(
            f"torch.cat took {ways['cat']['growth']:,} B beside the inputs, goflat.flatten_ "
            f"{ways[best]['growth']:,} B. Results were {_agree(ways[best])}."
        ),
        OWN.format(cure=CURES["cuda" if best == "collect" else "cpu"]),
    ]


def _agree(numbers: dict[str, Any]) -> str:
    return "the same, bit for bit" if numbers["equal"] else "NOT THE SAME"


def _said(numbers: dict[str, Any]) -> str:
    return f"the plan said {_mib(numbers['planned'])} of growth"


def _paragraph(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False)


def _any(result: dict[str, Any]) -> Any:
    """Return the numbers of one way, for what all ways have in common."""
    return result["ways"]["goflat"]


def _peak(numbers: dict[str, Any]) -> float:
    return float((numbers["inputs"] + numbers["growth"]) / numbers["inputs"])


def _mib(count: float) -> str:
    return f"{max(0.0, count) / MIB:.1f} MiB"


def _ms(numbers: dict[str, Any]) -> str:
    return f"{numbers['seconds'] * 1e3:.1f} ms"
