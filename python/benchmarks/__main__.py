"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import allocations, machine, measure, report, sweep, timers
from .cases import CASES
from .goals import goals
from .steps import Effort, progress_on, take
from .workloads import JOBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .steps import Step

NAMES = [case.name for case in CASES]
SECTIONS = ("sweep", "allocations", "timers")  # that are no jobs, but can be chosen like them
QUICK = ("square", "tiny")
RESULTS = Path(__file__).parents[2] / "docs" / "bench"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, compare two runs, draw one or measure memory.

    Returns 0 if nothing failed, 1 if the later of two runs is worse by more than the noise, and 2
    if there is nothing to compare, to draw or, without the extension, to measure.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["compare"]:
        from . import compare

        return compare.main(argv[1:])
    if argv[:1] == ["plot"]:
        from . import plots

        return plots.main(argv[1:])
    if "--memory" in argv:
        from . import memory

        return memory.main([argument for argument in argv if argument != "--memory"])
    options = _options()
    args = options.parse_args(argv)
    lack = machine.lack_of_extension()
    if lack and not args.fallback:
        options.error(f"calls would run in pure Python: {lack} (--fallback measures that)")
    run = _run(args, argv)
    run["goals"] = goals(run)
    report.show(report.run(run), sys.stdout)
    path = args.json or RESULTS / f"{args.device}-{run['machine']['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m goflat bench",
        description="Time goflat against the other ways to do the same.",
        epilog="'bench compare A.json B.json' shows what changed between two runs and exits with 1 "
        "if the second is worse by more than the noise, 'bench plot A.json' draws a run's sweep, "
        "'bench --memory --help' tells how memory is measured.",
    )
    jobs = sorted({name.split(",")[0] for name in (*NAMES, *(job.name for job in JOBS))})
    effort = Effort()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--fallback",
        action="store_true",
        help="measure the pure-Python engine if there is no other",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[*jobs, *SECTIONS],
        metavar="NAME",
        help=f"run this part (repeatable): {', '.join(SECTIONS)}, or a job: {', '.join(jobs)}",
    )
    parser.add_argument("--rounds", type=int, default=effort.rounds, help="default: %(default)s")
    parser.add_argument(
        "--block", type=float, default=effort.block_s, metavar="S", help="seconds per way and round"
    )
    parser.add_argument("--imports", type=int, default=3, help="how often to time the import")
    parser.add_argument(
        "--compile-most",
        type=int,
        default=effort.compile_most,
        metavar="N",
        help="entries of a job that torch.compile joins as well (%(default)s); 0 compiles nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="see that everything runs: numbers mean nothing"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="default: docs/bench/<device>-<date>.json"
    )
    return parser


def _run(args: argparse.Namespace, argv: Sequence[str]) -> dict[str, Any]:
    before, effort = machine.load(), Effort(args.rounds, args.block, args.compile_most)
    if args.quick:
        effort = Effort(1, 1e-4, 0, quick=True)
    steps = _steps(args, effort)
    progress = progress_on(sys.stderr, sum(step.cost_s for step in steps))
    found, seconds = take(steps, progress)
    cases = found.pop("cases", [])
    extras = [measure.overhead(case) for case in cases if case["name"] == "tiny"]
    return {
        "command": _command(argv),
        "machine": machine.describe_gpu() if args.device == "cuda" else machine.describe(),
        "load": {"before": before, "after": machine.load()},
        "effort": effort._asdict(),
        "seconds": seconds,
        "device_type": args.device,
        "cases": cases,
        "extras": [*extras, *found.pop("extras", [])],
        **found,
    }


def _command(argv: Sequence[str]) -> str:
    """Return the command without the file, which is nobody else's."""
    words = iter(argv)
    kept = [word for word in words if not (word == "--json" and next(words, ""))]
    kept = [word for word in kept if not word.startswith("--json=")]
    return " ".join(["python -m goflat bench", *kept])


def _steps(args: argparse.Namespace, effort: Effort) -> list[Step]:
    """Return what is to be measured, in the order of the results."""
    cases = [case for case in CASES if case.library == "torch" or args.device == "cpu"]
    cases = [case for case in cases if not effort.quick or case.name in QUICK]
    named = [case for case in cases if not args.only or case.name in args.only]
    imports = min(args.imports, 1) if effort.quick else args.imports
    found = measure.steps(named, effort, args.device, imports)
    if args.device == "cuda":
        from . import device

        found += device.steps(args.only, effort)
    extra = {
        "sweep": lambda: sweep.steps(effort, args.device),
        "allocations": lambda: allocations.steps(cases, args.device),
        "timers": lambda: timers.steps(cases, effort, args.device),
    }
    for name, steps in extra.items():
        found += steps() if not args.only or name in args.only else []
    return found


if __name__ == "__main__":
    sys.exit(main())
