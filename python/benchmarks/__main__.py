"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import device, machine, report
from .cases import CASES
from .goals import goals
from .measure import Effort, import_time, measure, overhead
from .workloads import JOBS

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = [case.name for case in CASES]
RESULTS = Path(__file__).parents[2] / "docs" / "bench"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, compare two runs or measure memory.

    Returns 0 if nothing failed, and 1 if the later of two runs is slower by more than the noise.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["compare"]:
        return _compare(argv[1:])
    if "--memory" in argv:
        from . import memory

        return memory.main([argument for argument in argv if argument != "--memory"])
    args = _options().parse_args(argv)
    run = _run(args, argv)
    print(report.table(run))
    run["goals"] = goals(run)
    path = args.json or RESULTS / f"{args.device}-{run['machine']['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m goflat bench",
        description="Time goflat against torch.cat and numpy.concatenate.",
        epilog="'bench compare A.json B.json' shows two runs side by side and exits with 1 if the "
        "second is slower by more than the noise, 'bench --memory --help' "
        "tells how memory is measured.",
    )
    names = sorted({name.split(",")[0] for name in (*NAMES, *(job.name for job in JOBS))})
    effort = Effort()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", choices=names, help="run this case (repeatable)")
    parser.add_argument("--rounds", type=int, default=effort.rounds, help="default: %(default)s")
    parser.add_argument(
        "--block", type=float, default=effort.block_s, metavar="S", help="seconds per way and round"
    )
    parser.add_argument("--imports", type=int, default=5, help="how often to time the import")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="default: docs/bench/<device>-<date>.json"
    )
    return parser


def _run(args: argparse.Namespace, argv: Sequence[str]) -> dict[str, Any]:
    before, chosen = machine.load(), [c for c in CASES if not args.only or c.name in args.only]
    cuda, effort = args.device == "cuda", Effort(args.rounds, args.block)
    chosen = [case for case in chosen if case.library == "torch" or not cuda]
    cases = [measure(case, effort, args.device) for case in chosen]
    extras = [overhead(case) for case in cases if case["name"] == "tiny"]
    extras += [import_time(args.imports)] if args.imports else []
    run = {
        "command": " ".join(["python -m goflat bench", *argv]),
        "machine": machine.describe_gpu() if cuda else machine.describe(),
        "load": {"before": before, "after": machine.load()},
        "effort": {"rounds": args.rounds, "block_s": args.block},
        "cases": cases,
        "extras": extras,
    }
    return {**run, **device.run(args.only, effort)} if cuda else run


def _compare(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m goflat bench compare")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    args = parser.parse_args(argv)
    runs = (json.loads(path.read_text()) for path in (args.before, args.after))
    text, slower = report.compare(*runs)
    print(text)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
