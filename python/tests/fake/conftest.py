"""Builds what the tests in this folder run on: the fake driver and the array library."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fake.place import Fake
from helpers import engines

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
collect_ignore = ["library.py"]  # --doctest-modules would import it; only children can
BUILT = ROOT / "build" / f"fakearray-{sys.implementation.cache_tag}"


@pytest.fixture(scope="session")
def fake() -> Fake:
    if engines.engine("native") is None:
        pytest.skip("the native extension is not built")
    build(sys.executable, str(ROOT / "tools/toolchain.py"), "make", "-s", "-C", "gpu/fakecuda")
    library = BUILT / "fakearray.so"
    sources = [HERE / "array.c", ROOT / "bridge/dlpack_abi.h"]
    if not library.exists() or any(newer(source, library) for source in sources):
        compile_array(library)
    return Fake(ROOT / "gpu/fakecuda/build", BUILT)


def newer(a: Path, b: Path) -> bool:
    return a.stat().st_mtime > b.stat().st_mtime


def compile_array(library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    includes = f"-I{sysconfig.get_path('include')}", f"-I{ROOT / 'bridge'}"
    # -Wextra dislikes what CPython's tables of methods and members ask for
    quiet = "-Wno-missing-field-initializers", "-Wno-cast-function-type"
    flags = "-O1", "-g", "-Wall", "-Wextra", "-Werror", *quiet, "-shared", "-fPIC", *includes
    compiler = os.environ.get("CC", "gcc").split()
    build(*compiler, *flags, "-o", str(library), str(HERE / "array.c"))


def build(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
