"""Builds what the tests in this folder run on: the fake driver and the array library."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake.place import Fake
from helpers import child, engines
from helpers.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@pytest.fixture(scope="session")
def runtime(fake: Fake) -> str:
    """Build cudart.c."""
    source, library = HERE / "cudart.c", fake.extension / "cudart.so"
    if not library.exists() or newer(source, library):
        compiler = os.environ.get("CC", "gcc").split()
        flags = "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"
        build(*compiler, *flags, "-o", str(library), str(source), "-ldl", "-lpthread")
    return str(library)


@pytest.fixture(scope="session")
def zygotes(fake: Fake, runtime: str) -> Iterator[Callable[[str], Zygote]]:
    """Return what forks children in which torch sees the fake devices, by allocator settings."""
    started: dict[str, Zygote] = {}

    def zygote(settings: str) -> Zygote:
        if settings not in started:
            preload = {"LD_PRELOAD": runtime, "CUDART": runtime}
            path = {"LD_LIBRARY_PATH": str(fake.driver), "PYTORCH_ALLOC_CONF": settings}
            quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # 2.14 warns of each failed allocation
            started[settings] = Zygote(child.environment({**preload, **path, **quiet}))
        return started[settings]

    yield zygote
    for one in started.values():
        one.close()
