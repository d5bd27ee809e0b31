"""A C compiler for wheels: Zig's clang, with the headers and symbols of glibc 2.28.

The compilers of a distribution link with its own glibc, and what they build loads on that one
and later. Zig carries those of all versions::

    CC="python tools/zigcc.py" python -m pip wheel .
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

TARGET = "x86_64-linux-gnu.2.28"
# gorgonia.org/cu names these folders for the CUDA of some distributions. GCC has them anyway;
# here they would bring the glibc of the machine back in.
OF_THE_MACHINE = re.compile(r"-[IL]/usr/(include|lib(64|/x86_64-linux-gnu)?)/?")


def zig() -> Path | None:
    """Find the program in the package ziglang, if that is installed."""
    package = find_spec("ziglang")
    return Path(package.origin).parent / "zig" if package and package.origin else None


def arguments(given: list[str]) -> list[str]:
    """Return what to call Zig with for these arguments of a C compiler."""
    return ["cc", "-target", TARGET, *(a for a in given if not OF_THE_MACHINE.fullmatch(a))]


if __name__ == "__main__":
    program = zig() or sys.exit("zigcc needs Zig: pip install ziglang")
    os.execv(program, [str(program), *arguments(sys.argv[1:])])
