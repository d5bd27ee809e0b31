"""Checks that an extension, alone or in a wheel, runs on machines unlike the one that built it.

It takes the paths of shared objects and wheels; for a wheel, auditwheel has a say as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST_BYTES = 7_000_000  # 2.9 MB of them are PTX, which a wheel compresses well
OLDEST_GLIBC, NEWEST_GLIBC = (2, 28), (2, 34)
# glibc in one file since 2.34, and in these before.
GLIBC_FILES = {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
OF_THE_BUILD = (str(ROOT), "/include/python3", "/pip-")  # folders of a checkout, of Python, of pip


def output(*command: str) -> str:
    """Run the command and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def faults(extension: Path) -> Iterator[str]:
    """Say what is wrong with the shared object, one sentence each."""
    dynamic = output("readelf", "--wide", "--dynamic", str(extension))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    if not set(needed) <= GLIBC_FILES:
        yield f"it needs {needed}, not just glibc"
    if paths := re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
        yield f"it looks for libraries in {paths}"
    exported = re.findall(r" T (\S+)", output("nm", "--dynamic", "--defined-only", str(extension)))
    if exported != ["PyInit__core"]:
        yield f"it exports {exported[:5]}, not just PyInit__core"
    if ".symtab" in output("readelf", "--wide", "--sections", str(extension)):
        yield "it is not stripped"
    if (size := extension.stat().st_size) > LARGEST_BYTES:
        yield f"it has {size:,} bytes, more than {LARGEST_BYTES:,}"
    for path in OF_THE_BUILD:
        if path.encode() in extension.read_bytes():
            yield f"it contains the path {path}"
    versions = output("readelf", "--wide", "--version-info", str(extension))
    newest = max(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", versions))
    if newest > NEWEST_GLIBC:
        yield f"it needs glibc {newest}, newer than {NEWEST_GLIBC}"


def check(extension: Path) -> None:
    """Exit with the faults of the extension, if it has any."""
    if found := list(faults(extension)):
        sys.exit("\n".join(f"{extension.name}: {fault}" for fault in found))
    print(f"{extension.name}: {extension.stat().st_size:,} bytes, self-contained")


def platform_of(wheel: Path) -> str:
    """Return the oldest platform that the wheel fits, such as manylinux_2_28_x86_64.

    auditwheel looks at symbols alone; nothing older than `OLDEST_GLIBC` was compiled for or tried.
    """
    report = output(sys.executable, "-m", "auditwheel", "show", str(wheel))
    found = re.search(r"platform tag:\s+\"manylinux_(\d+)_(\d+)_(\w+)\"", report)
    if not found:
        sys.exit(report)
    major, minor = max((int(found[1]), int(found[2])), OLDEST_GLIBC)
    return f"manylinux_{major}_{minor}_{found[3]}"


def main(paths: list[str]) -> None:
    """Check each wheel or shared object; the first with a fault ends the program."""
    for path in map(Path, paths):
        if path.suffix != ".whl":
            check(path)
            continue
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".so"):
                    check(Path(archive.extract(name, folder)))
        print(f"{path.name}: {path.stat().st_size:,} bytes, {platform_of(path)}")


if __name__ == "__main__":
    main(sys.argv[1:])
