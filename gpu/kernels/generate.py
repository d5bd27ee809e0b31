"""Compile the kernel files beside this script to PTX with NVRTC.

    pip install nvidia-cuda-nvrtc-cu12==12.1.105
    python gpu/kernels/generate.py

NVRTC needs neither a GPU nor a driver. The version is fixed, since it decides how
old a driver may be: 12.1 writes PTX ISA 8.1, which drivers from R530 (CUDA 12.1) on
compile, the first that take 32,764 bytes of kernel parameters. The first line of each
PTX file carries a sha256 over the flags and all sources, which kernels_test.go checks.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
NVRTC = (12, 1)
FLAGS = ("--gpu-architecture=compute_70", "--std=c++17")
HEADERS = ("common.cuh", "table.cuh")
MORE = {"gather": ("copy.cuh", "strided.cuh")}  # where headers have other names than their source
FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")


class Unit(NamedTuple):
    """What becomes one PTX file."""

    name: str
    source: Path
    flags: tuple[str, ...]
    headers: tuple[str, ...]


def units() -> Iterator[Unit]:
    """One of each kernel file, but one for each pair of types of cast.cu."""
    for source in sorted(HERE.glob("*.cu")):
        if source.stem != "cast":
            own = (source.stem + ".cuh",) if source.with_suffix(".cuh").exists() else ()
            more = MORE.get(source.stem, own)
            yield Unit(source.stem, source, FLAGS, (*HEADERS, *more))
            continue
        for pair in itertools.product(FLOATS, FLOATS):
            defined = (*FLAGS, *map("--define-macro={}={}".format, ("SOURCE", "TARGET"), pair))
            yield Unit(
                "cast_{}_{}".format(*pair), source, defined, (*HEADERS, "floats.cuh", "cast.cuh")
            )


def fingerprint(unit: Unit) -> str:
    """sha256 over the flags, then name and text of each header and the source, NUL after each."""
    digest = hashlib.sha256()
    for flag in unit.flags:
        digest.update(flag.encode() + b"\0")
    for path in (*(HERE / name for name in unit.headers), unit.source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def library() -> Path:
    """Where pip put NVRTC."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("generate.py: pip install nvidia-cuda-nvrtc-cu12==12.1.105")
    return Path(spec.submodule_search_locations[0]) / "lib" / "libnvrtc.so.12"


class Compiler:
    """The few NVRTC calls it takes."""

    def __init__(self, path: Path) -> None:
        """Load NVRTC and refuse any but the fixed version."""
        self.nvrtc = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != NVRTC:
            found = f"{major.value}.{minor.value}"
            sys.exit(f"generate.py: {path} is NVRTC {found}, want {NVRTC[0]}.{NVRTC[1]}")

    def text(self, program: ctypes.c_void_p, what: str) -> str:
        """Return the program's "PTX" or "ProgramLog"."""
        size = ctypes.c_size_t()
        getattr(self.nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    def compile(self, unit: Unit) -> str:
        """PTX of a kernel file; an error of the compiler ends the script."""
        source = unit.source
        texts = [(HERE / name).read_bytes() for name in unit.headers]
        names = [name.encode() for name in unit.headers]
        program = ctypes.c_void_p()
        created = self.nvrtc.nvrtcCreateProgram(
            ctypes.byref(program),
            source.read_bytes(),
            source.name.encode(),
            len(names),
            (ctypes.c_char_p * len(names))(*texts),
            (ctypes.c_char_p * len(names))(*names),
        )
        flags = (ctypes.c_char_p * len(unit.flags))(*(flag.encode() for flag in unit.flags))
        failed = created or self.nvrtc.nvrtcCompileProgram(program, len(unit.flags), flags)
        log = self.text(program, "ProgramLog") if not created else ""
        if log.strip():
            print(log, file=sys.stderr)
        if failed:
            sys.exit(f"generate.py: {unit.name}: nvrtc error {failed}")
        return self.text(program, "PTX")


def tidy(ptx: str) -> str:
    """Drop the constants of NVRTC's own <nv/target>, which nothing uses."""
    return "".join(line for line in ptx.splitlines(keepends=True) if "2nv6target" not in line)


def main() -> None:
    """Write the .ptx beside the .cu."""
    compiler = Compiler(library())
    for unit in units():
        ptx = tidy(compiler.compile(unit))
        stamp = f"// {unit.source.name} sha256 {fingerprint(unit)}"
        origin = "generated by gpu/kernels/generate.py, do not edit"
        (HERE / f"{unit.name}.ptx").write_text(f"{stamp}; {origin}\n{ptx}")
        print(f"{unit.name}.ptx {len(ptx)} bytes")


if __name__ == "__main__":
    main()
