"""The command line: ``python -m goflat bench --memory``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import machine
from . import report
from .parts import PARTS, run
from .setup import Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).parents[3] / "docs" / "bench"


def main(argv: Sequence[str]) -> int:
    """Run the parts; 1 if something failed, 0 if not."""
    options = _options()
    args = options.parse_args(argv)
    lack = machine.lack_of_extension()
    if lack:
        options.error(f"calls would run in pure Python: {lack}")
    if args.device == "cuda" and not torch.cuda.is_available():
        options.error("torch sees no GPU")
    setup = Setup(args.device, args.samples, args.seeds, args.shrink)
    before = machine.load()
    parts = {}
    for part in PARTS:
        if not args.only or part in args.only:
            parts[part] = run(part, setup)
            print(report.part(part, parts[part]), flush=True)
    found: dict[str, Any] = {
        "command": _command(args),
        "setup": setup._asdict(),
        "parts": parts,
        "machine": machine.describe_gpu() if setup.cuda else machine.describe(),
        "load": {"before": before, "after": machine.load()},
    }
    print(report.end(found))
    path = args.json or RESULTS / f"memory-{args.device}-{found['machine']['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_dumps(found) + "\n")
    return int(bool(report.errors(parts)))


def _options() -> argparse.ArgumentParser:
    setup = Setup()
    parser = argparse.ArgumentParser(
        prog="python -m goflat bench --memory",
        description="Measure what each way to join entries costs in memory.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default=setup.device)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="(repeatable)")
    parser.add_argument("--samples", type=int, default=setup.samples, help="of each time")
    parser.add_argument("--seeds", type=int, default=setup.seeds, help="random jobs of a kind")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="divide rows by N")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="default: docs/bench/memory-<device>-<date>.json"
    )
    return parser


def _command(args: argparse.Namespace) -> str:
    """Return the command without the file, which is nobody else's."""
    words = ["python -m goflat bench --memory --device", args.device]
    words += [f"--only {part}" for part in args.only or ()]
    defaults = Setup()._asdict()
    for name in ("samples", "seeds", "shrink"):
        value = getattr(args, name)
        words += [f"--{name} {value}"] if value != defaults[name] else []
    return " ".join(words)


def _dumps(found: dict[str, Any]) -> str:
    """Write a record a line: short to read, and to compare."""
    parts = {name: {**part, "records": []} for name, part in found["parts"].items()}
    text = json.dumps({**found, "parts": parts}, indent=1)
    for part in found["parts"].values():
        lines = ",\n    ".join(map(json.dumps, part["records"]))
        text = text.replace('"records": []', f'"records": [\n    {lines}\n   ]', 1)
    return text
