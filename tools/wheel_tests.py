"""Tests what wheels.py has built, each thing in an environment of its own.

Every test returns lines for the report; the first failure ends the program.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import check_wheel
import toolchain

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
NOT_TESTED = (".*", "build", "dist", "goflat", "*.egg-info")
# A wheel has no benchmarks, and no sources to build another one from.
SELECT = (
    *("-m", "not gpu and not slow"),
    "--ignore=python/tests/bench",
    "--ignore=python/tests/test_packaging.py",
    "--deselect=python/tests/test_main.py::test_bench_without_torch",
)
SMOKE = [
    f"python/tests/{name}"
    for name in (
        *("test_flatten.py", "test_torch.py", "test_numpy.py", "test_dlpack.py", "test_outs.py"),
        *("test_errors.py", "test_lifetime.py", "test_process.py", "test_fork.py"),
        *("consume/test_in_place.py", "consume/test_values.py", "consume/test_containers.py"),
    )
]
# The oldest releases that the extras allow, as far as there are wheels for the Python.
OLDEST_TORCH = "2.6.0"
OLDEST_NUMPY = {"3.10": "1.24.4", "3.11": "1.24.4", "3.12": "1.26.0", "3.13": "2.1.0"}
FIRST_STEPS = """
import sys, warnings
library, native = sys.argv[1], sys.argv[2] == "native"
lib = __import__(library)
warnings.simplefilter("error")
import goflat
from goflat import _doctor
features = {"a": [lib.ones((2, 3)), lib.ones((0, 3))], "b": [lib.zeros((1, 3)), lib.ones((4, 3))]}
flat = goflat.flatten(features)
assert [tuple(out.shape) for out in flat] == [(3, 3), (4, 3)], flat
assert tuple(goflat.flatten(features, packed=True).buffer.shape) == (7, 3)
assert flat.unflatten()["b"][1].shape == (4, 3)
if library == "torch":
    flat = goflat.flatten_(features, max_growth=1 << 20)
    assert features == {}
assert [out.sum() for out in flat] == [6, 12]
assert _doctor.extension()["loaded"] is native, _doctor.extension()
assert _doctor.examine()["healthy"], _doctor.report(_doctor.examine())
print(_doctor.extension()["text"])
"""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = os.environ) -> None:
    """Run the command and stop everything when it fails; `env` adds to the environment."""
    shown = (str(part).splitlines() for part in command)
    print("+", *(lines[0] if len(lines) == 1 else "..." for lines in shown), flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env={**os.environ, **env})


@contextlib.contextmanager
def environment(python: str | Path, *packages: str | Path) -> Iterator[Path]:
    """Make a new virtual environment with these packages; give its interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", Path(folder) / "venv")
        fresh = Path(folder) / "venv" / "bin" / "python"
        if packages:
            run(*PIP, "--python", fresh, "install", *packages)
        yield fresh


def offline(sdist: Path) -> list[str]:
    """Install the source where there is neither a network nor Go: it says so, and what to do."""
    with environment(sys.executable, "setuptools>=77") as fresh:
        system = [f for f in os.get_exec_path() if not (Path(f) / "go").exists()]
        env = {**os.environ, "PATH": os.pathsep.join(system), "GOPROXY": "off"}
        install = ["install", "--no-index", "--no-build-isolation", "--no-deps", str(sdist)]
        command = [str(fresh), "-m", "pip", *install]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=fresh.parent)
        said = done.stdout + done.stderr
        for text in ("needs Go", "PyBindGen", toolchain.CUDA_HEADERS, "GOFLAT_PURE=1 pip install"):
            if done.returncode == 0 or text not in said:
                sys.exit(f"the offline build of {sdist.name} does not say {text!r}:\n{said}")
        run(*command, cwd=fresh.parent, env={**env, "GOFLAT_PURE": "1"})
        run(*PIP, "--python", fresh, "install", "numpy")
        first_steps(fresh, "numpy", "pure")
    return [f"{sdist.name}: says what it lacks offline; GOFLAT_PURE=1 installs the fall-back"]


def choice(dist: Path, pure: Path) -> list[str]:
    """Let pip choose among all wheels: the pure one is for systems that have no other."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    native = bool(list(dist.glob(f"*-cp{version.replace('.', '')}-*")))
    systems = {"macosx_14_0_arm64": True, "win_amd64": True, "musllinux_1_2_x86_64": True}
    for system, wants_pure in {**systems, "manylinux_2_34_x86_64": not native}.items():
        with tempfile.TemporaryDirectory() as folder:
            limits = ["--only-binary=:all:", f"--python-version={version}", f"--platform={system}"]
            limits += ["--platform=manylinux_2_28_x86_64"] if system.startswith("manylinux") else []
            source = ["--no-index", "--no-deps", f"--find-links={dist}", f"--dest={folder}"]
            run(*PIP, "download", *source, *limits, "goflat")
            (chosen,) = Path(folder).iterdir()
            if (chosen.name == pure.name) is not wants_pure:
                sys.exit(f"pip takes {chosen.name} on {system}")
    return [f"{pure.name}: what pip takes on {', '.join(systems)}, and on no other"]


def pure(wheel: Path) -> list[str]:
    """Try the pure-Python wheel with NumPy alone, and with torch."""
    lines = []
    for library in ("numpy", "torch"):
        with environment(sys.executable, wheel, library) as fresh:
            first_steps(fresh, library, "pure")
            lines.append(f"{wheel.name}: works with {library} alone")
    return lines


def first_steps(python: Path, library: str, engine: str) -> None:
    """Do what a user does first, away from the checkout; a warning of goflat is an error."""
    run(python, "-W", "ignore", "-c", FIRST_STEPS, library, engine, cwd=python.parent)


def extension(python: Path, version: str, wheel: Path, quick: bool) -> list[str]:
    """Run the tests of the CPU on the newest torch, and the more important ones on the oldest."""
    lines = []
    with environment(python, "--group", "test", *toolchain.requires(), wheel) as fresh:
        lines.append(suite(fresh, wheel, SMOKE if quick else ["python/tests"]))
    if version in OLDEST_NUMPY:
        old = (f"torch=={OLDEST_TORCH}", f"numpy=={OLDEST_NUMPY[version]}")
        tools = ("pytest", "pytest-timeout", "hypothesis")
        with environment(python, *old, *tools, wheel) as fresh:
            lines.append(suite(fresh, wheel, SMOKE))
    return lines


def suite(python: Path, wheel: Path, tests: list[str]) -> str:
    """Run tests against the installed wheel, in a copy of the tree without the package."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_TESTED), symlinks=True)
        command = [str(python), "-m", "pytest", *SELECT, *tests]
        print("+", *command, flush=True)
        done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"{wheel.name} fails its tests")
    passed = re.findall(r"\d+ passed.*? in", done.stdout)[-1].removesuffix(" in")
    ask = "import torch, numpy; print('torch', torch.__version__, 'numpy', numpy.__version__)"
    versions = check_wheel.output(str(python), "-c", ask).strip()
    return f"{wheel.name}: {versions}: {passed}, {time.monotonic() - start:.0f} s"
