"""Builds all that a release uploads into dist/, and tests it in clean environments.

One wheel for each supported Python on this machine, the pure-Python wheel for all other systems,
and the source distribution that they are built from. The wheels load from glibc 2.28 on where PyPI
has its compiler for this machine (zigcc.py), and else from that of the machine on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import check_wheel
import wheel_tests
import zigcc
from wheel_tests import PIP, ROOT, run

DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def is_python(path: Path, version: str) -> bool:
    """Tell whether the executable runs and is of that release; a pyenv shim may be neither."""
    ask = [str(path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip() == version


def find(version: str) -> Path | None:
    """Find an interpreter of that release, on PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
    known += sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    return next((p for p in known if p.is_file() and is_python(p, version)), None)


def build_sdist() -> Path:
    """Make the source distribution."""
    code = f"import backend; backend.build_sdist({str(DIST)!r})"
    run(sys.executable, "-c", code, env={"PYTHONPATH": str(ROOT / "tools")})
    (sdist,) = DIST.glob("*.tar.gz")
    return sdist


def build_pure(sdist: Path) -> Path:
    """Make the wheel for any system."""
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", DIST, sdist, env={"GOFLAT_PURE": "1"})
    (wheel,) = DIST.glob("*-none-any.whl")
    return wheel


def compiler() -> dict[str, str]:
    """Choose the compiler of the wheels, by environment variables."""
    if not zigcc.zig():
        return {}
    # Without the -g of Go's own flags, which would keep Zig from stripping.
    return {"CC": f"{sys.executable} {ROOT / 'tools' / 'zigcc.py'}", "CGO_LDFLAGS": "-O2"}


def build(python: Path, sdist: Path) -> Path:
    """Build a wheel into dist/, checked and named after the platform it fits."""
    with tempfile.TemporaryDirectory() as folder:
        command = (*PIP, "--python", python, "wheel", "--no-deps", "--wheel-dir", folder, sdist)
        run(*command, env=compiler())
        (wheel,) = Path(folder).glob("*.whl")
        check_wheel.main([str(wheel)])
        tag = check_wheel.platform_of(wheel)
        run(sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag={tag}", wheel)
        (wheel,) = Path(folder).glob("*.whl")
        return Path(shutil.copy(wheel, DIST))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="only these, such as 3.12")
    parser.add_argument("--quick", action="store_true", help="a subset of the tests on every torch")
    return parser.parse_args()


def main() -> None:
    """Make dist/ anew."""
    asked = options()
    os.chdir(ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    sdist = build_sdist()
    pure = build_pure(sdist)
    pythons = {v: p for v in asked.python or PYTHONS if (p := find(v))}
    wheels = {version: build(python, sdist) for version, python in pythons.items()}
    results = wheel_tests.offline(sdist)
    results += wheel_tests.choice(DIST, pure)
    results += wheel_tests.pure(pure)
    for version, wheel in wheels.items():
        results += wheel_tests.extension(pythons[version], version, wheel, asked.quick)
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size:>9,} bytes  {file.name}")
    print(*results, sep="\n")
    for version in PYTHONS:
        if not asked.python and version not in wheels:
            print(f"no Python {version} here: no wheel for it")


if __name__ == "__main__":
    main()
