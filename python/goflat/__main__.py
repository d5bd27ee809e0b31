"""``python -m goflat demo | doctor | bench``."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _demo, _doctor

if TYPE_CHECKING:
    from collections.abc import Sequence

MORE = """\
example:
  python -m goflat demo --device cpu

exit codes:
  0  all is well
  1  it is not: a problem was found
  2  the command could not run as given

COMMAND --help says more. Tables have lines and colours on a terminal where rich is installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if args.command == "bench":
        return _bench(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    run = _demo.main if args.command == "demo" else _doctor.main
    return run(args)


def _parser() -> argparse.ArgumentParser:
    form: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
        prog="python -m goflat", description=_description(), epilog=MORE, **form
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    form |= {"description": _demo.HELP, "epilog": _demo.MORE}
    demo = commands.add_parser("demo", help="what a small job costs, next to torch.cat", **form)
    form |= {"description": _doctor.HELP, "epilog": _doctor.MORE}
    doctor = commands.add_parser("doctor", help="what goflat found here; does it work", **form)
    commands.add_parser("bench", add_help=False, help="CPU benchmarks (in a checkout)")
    _demo.add_arguments(demo)
    _doctor.add_arguments(doctor)
    return parser


def _description() -> str:
    from . import __doc__

    return __doc__ or ""


def _bench(arguments: list[str]) -> int:
    """Hand over to python/benchmarks, which no wheel has."""
    checkout = Path(__file__).parents[1]
    if not (checkout / "benchmarks").is_dir():
        print("goflat bench runs in a checkout of goflat: python/benchmarks is not installed")
        return 2
    if not (find_spec("torch") and find_spec("numpy")):
        print("goflat bench compares with torch and NumPy: pip install torch numpy")
        return 2
    sys.path.insert(0, str(checkout))
    from benchmarks.__main__ import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())
