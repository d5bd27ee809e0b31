"""What a call allocates on the host: Python objects, C memory, Go objects.

    python    tracemalloc: the most bytes during a call, and blocks and bytes that its result keeps.
              Blocks that come and go within the call are not told apart by it.
    malloc    calls and bytes asked of malloc, calloc, realloc and posix_memalign, by whatever code
              (torch, goflat's C, Python for objects above 512 bytes). On a CPU that includes
              the memory of the outputs. Counted by a library that is loaded ahead of libc, so a
              process of its own, a C compiler and glibc are needed.
    go        objects on Go's heap, by its own count; the memory for them does not come from malloc.

Numbers are those of a call that is not the first, without what reading the counters costs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cases import CASES
from .machine import python
from .steps import Step
from .ways import ways

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cases import Case
    from .ways import Way

JOBS = ("seed", "many small", "square", "many keys", "tiny")
WAYS = (
    "goflat",
    "goflat packed",
    "goflat out=",
    "goflat bound",
    "loop",
    "zip",
    "split",
    "cat out=",
    "foreach copy",
)
CALLS = 20
COUNTERS = ("goflat_bench_calls", "goflat_bench_bytes")
SOURCE = Path(__file__).with_name("allocations.c")
START_S = 8.0  # of a process with torch


def steps(cases: Sequence[Case], device: str) -> list[Step]:
    """Return a step for all jobs, since they share a process."""
    names = [case.name for case in cases if case.name in JOBS]
    return [Step("allocations", "host", START_S, lambda: measure(names, device))]


def measure(names: Sequence[str], device: str) -> dict[str, Any]:
    """Return the records of a process of its own, and what it could not count."""
    with tempfile.TemporaryDirectory() as folder:
        library = _counter(Path(folder))
        preload = {"LD_PRELOAD": str(library)} if isinstance(library, Path) else {}
        text = python("-m", "benchmarks.allocations", device, *names, add=preload, cwd=_above())
    missing = {} if preload else {"malloc": str(library)}
    return {"jobs": json.loads(text), "not measured": missing}


def _above() -> Path:
    return Path(__file__).parents[1]


def _counter(folder: Path) -> Path | str:
    """Return the library that counts, or why there is none."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return "no C compiler"
    made = folder / "allocations.so"
    command = [compiler, "-O2", "-fPIC", "-shared", "-fno-builtin", str(SOURCE), "-o", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as why:
        return str(why)
    probe = python("-c", "print(1)", add={"LD_PRELOAD": str(made)})
    return made if probe.strip() == "1" else "this libc does not let itself be counted"


# ---- in the process of its own ----


def main(arguments: Sequence[str]) -> None:
    """Print the records of the jobs: the device and their names."""
    device, *names = arguments
    jobs = [case for case in CASES if case.name in names and case.library == "torch"]
    print(json.dumps([_job(case, device) for case in jobs]))


def _job(case: Case, device: str) -> dict[str, Any]:
    runs = ways("torch", case.features(device), WAYS).runs
    counted = {name: count(run) for name, run in runs.items()}
    return {"name": case.name, "title": case.title, "batches": case.batches, "ways": counted}


def count(run: Way) -> dict[str, Any]:
    """Return what a call allocates."""
    nothing, found = _counts(lambda: None), _counts(run)
    return {
        kind: {name: max(0, round(n - nothing[kind][name], 2)) for name, n in of.items()}
        for kind, of in found.items()
    }


def _counts(run: Way) -> dict[str, dict[str, float]]:
    run()
    run()
    gc.collect()
    gc.disable()
    try:
        return {"python": _python(run), **_native(run)}
    finally:
        gc.enable()


def _python(run: Way) -> dict[str, float]:
    tracemalloc.start()
    try:
        run()
        blocks = _blocks()
        tracemalloc.reset_peak()
        level, _ = tracemalloc.get_traced_memory()
        result = run()
        kept, peak = tracemalloc.get_traced_memory()
        found = {"peak_bytes": peak - level, "kept_bytes": kept - level}
        found["kept_blocks"] = _blocks() - blocks
        del result
        return {name: float(n) for name, n in found.items()}
    finally:
        tracemalloc.stop()


def _blocks() -> int:
    return len(tracemalloc.take_snapshot().traces)


def _native(run: Way) -> dict[str, dict[str, float]]:
    before = _native_counters()
    for _ in range(CALLS):
        run()
    after = _native_counters()
    return {
        kind: {name: (after[kind][name] - n) / CALLS for name, n in of.items()}
        for kind, of in before.items()
    }


def _native_counters() -> dict[str, dict[str, int]]:
    """Return the counters that there are."""
    found: dict[str, dict[str, int]] = {}
    if (objects := _go_objects()) is not None:
        found["go"] = {"objects": objects}
    try:
        calls, size = (ctypes.c_long.in_dll(ctypes.CDLL(None), name).value for name in COUNTERS)
    except ValueError:  # not loaded ahead of libc
        return found
    return {**found, "malloc": {"calls": calls, "bytes": size}}


def _go_objects() -> int | None:
    """Return how many objects Go has made, if the extension is there and says so."""
    from goflat import _native

    read = getattr(_native._core, "bridge_Mallocs", None)
    return read() if read else None


if __name__ == "__main__":
    main(sys.argv[1:])
