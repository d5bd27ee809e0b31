"""The parts by name, and running one of them: in this process, or in one of its own."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import goflat

from . import cap, collected, growth, inplace, ownership, prediction, timelines
from .setup import MODES, Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .setup import Item

    Part = Callable[[Setup], Iterator[Item]]

PARTS: dict[str, Part] = {
    "growth": growth.items,
    "timelines": timelines.items,
    "inplace": inplace.items,
    "prediction": prediction.items,
    "collect": collected.items,
    "cap": cap.items,
    "ownership": ownership.items,
}
IN_ALL_MODES = ("growth", "prediction")
LIMIT_S = 120  # of a process


def records(part: str, setup: Setup) -> Iterator[dict[str, Any]]:
    """Run a part in this process; an item that fails gives a record with its error."""
    for facts, measure in PARTS[part](setup):
        start = perf_counter()
        try:
            record = {**facts, **measure()}
        except Exception as error:
            record = {**facts, "error": _text(error)}
        yield {**record, "took_s": round(perf_counter() - start, 3)}


def _text(error: Exception) -> str:
    """Say what and where, without a reference to any frame."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    error.__traceback__ = None
    return text


def child() -> None:
    """Run the part of the command line and print a record a line, each as soon as it is there."""
    part, text = sys.argv[1:]
    gc.freeze()  # what imports have made, else looked through by each collection
    for record in records(part, Setup(**json.loads(text))):
        print(json.dumps(record), flush=True)


def run(part: str, setup: Setup) -> dict[str, Any]:
    """Run a part in processes of its own, one for each mode of the allocator that it needs."""
    if next(PARTS[part](setup), None) is None:
        return {"seconds": 0, "records": [], "skipped": f"nothing to measure on {setup.device}"}
    modes = list(MODES) if setup.cuda and part in IN_ALL_MODES else ["default"]
    start, found, errors = perf_counter(), [], []
    for mode in modes:
        lines, error = _process(part, setup._replace(mode=mode))
        found += lines
        errors += [f"{mode}: {error}"] if error else []
    whole = {"seconds": round(perf_counter() - start, 1), "records": found}
    return {**whole, "error": "\n".join(errors)} if errors else whole


def _process(part: str, setup: Setup) -> tuple[list[dict[str, Any]], str]:
    """Return the records of a process, and why it ended early if it did."""
    command = [sys.executable, "-m", "benchmarks.memory", part, json.dumps(setup._asdict())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=_environment(setup.mode), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nstopped after {LIMIT_S} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if process.returncode == 0:
        return found, ""
    return found, f"exit status {process.returncode}\n{err[-2000:]}"


def _environment(mode: str) -> dict[str, str]:
    """Return what a child needs to find the same goflat, and its allocator's mode."""
    places = [Path(str(goflat.__file__)).parents[1], Path(__file__).parents[2]]
    path = [*map(str, places), os.environ.get("PYTHONPATH", "")]
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 17),  # else glibc keeps larger and larger blocks
    }
    if MODES[mode]:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = settings["PYTORCH_ALLOC_CONF"] = MODES[mode]
    return {**os.environ, **settings}
