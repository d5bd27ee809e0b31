"""Builds, checks and tests one wheel for each supported Python on this machine, into dist/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import check_wheel
from check_wheel import output

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
BENCHMARKS = (
    "--ignore=python/tests/test_benchmarks.py",
    "--deselect=python/tests/test_main.py::test_bench_without_torch",
)
NOT_TESTED = (".*", "build", "dist", "goflat", "*.egg-info")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run the command and stop everything when it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def pip(python: Path, *arguments: str | Path) -> None:
    """Run this environment's pip for another interpreter."""
    run(sys.executable, "-m", "pip", "--quiet", "--python", python, *arguments)


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


def build(python: Path) -> Path:
    """Build a wheel into dist/, checked and named after the platform it fits."""
    with tempfile.TemporaryDirectory() as folder:
        pip(python, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = Path(folder).glob("*.whl")
        check_wheel.main([str(wheel)])
        tag = check_wheel.platform_of(wheel)
        run(sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag={tag}", wheel)
        (wheel,) = Path(folder).glob("*.whl")
        return Path(shutil.copy(wheel, DIST))


def test(python: Path, wheel: Path) -> None:
    """Run the CPU tests against the installed wheel, in a copy of the tree without the package.

    Those of the benchmarks stay out, because a wheel has no benchmarks.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree, venv = Path(folder) / "tree", Path(folder) / "venv"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_TESTED), symlinks=True)
        run(python, "-m", "venv", venv)
        fresh = venv / "bin" / "python"
        requires = output(sys.executable, "tools/build_requires.py").splitlines()
        pip(fresh, "install", "--group", "test", *requires, wheel)
        select = ("-m", "not gpu and not slow", *BENCHMARKS)
        run(fresh, "-m", "pytest", *select, "python/tests", cwd=tree)


def main() -> None:
    """Make dist/ anew."""
    os.chdir(ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for version in PYTHONS:
        if python := find(version):
            test(python, build(python))
        else:
            print(f"no Python {version} here: no wheel for it")


if __name__ == "__main__":
    main()
