"""What a run ran on."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import goflat

if TYPE_CHECKING:
    from collections.abc import Mapping

BUSY = 0.25  # load per core from which numbers are not to be trusted


def lack_of_extension() -> str:
    """Say why calls run in pure Python, which nobody wants to measure by mistake; or ""."""
    try:
        import_module("goflat._core")
    except ImportError as error:
        return str(error)
    return ""


def describe() -> dict[str, Any]:
    """Return CPU, versions, threads and time, without anything that names this machine."""
    doctor = json.loads(python("-m", "goflat", "doctor", "--json"))
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": cores(),
        "threads": {"torch": torch.get_num_threads(), **_thread_settings()},
        "extension": doctor["extension"]["text"],
        "versions": {
            "goflat": goflat.__version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": doctor["numpy"]["version"],
            "libc": " ".join(platform.libc_ver()),
            "kernel": platform.release(),
        },
    }


def describe_gpu() -> dict[str, Any]:
    """Return what `describe` does and the current GPU."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    gpu = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver(),
    }
    machine = describe()
    machine["versions"]["cuda"] = torch.version.cuda
    return {**machine, "gpu": gpu}


def _driver() -> str | None:
    """Return the release of the driver, if nvidia-smi is there to ask."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.check_output(command, text=True).splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def load() -> float:
    """Return the load per core over the last minute."""
    return round(os.getloadavg()[0] / cores(), 2)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def python(*arguments: str, add: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Return what a new Python that finds the same goflat prints, whatever its exit code."""
    place = str(Path(str(goflat.__file__)).parents[1])
    path = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, **(add or {})}
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    done = subprocess.run(command, env=env, text=True, stdout=pipe, check=False, cwd=cwd)
    return done.stdout


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def _thread_settings() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMAXPROCS")
    return {name: os.environ[name] for name in names if name in os.environ}


def _commit() -> str | None:
    """Return the commit of goflat, with a + if tracked files were changed, if it is known.

    A wheel tells it in a file; a checkout is asked.
    """
    package = Path(str(goflat.__file__)).parent
    if (told := package / "commit.txt").exists():
        return told.read_text().strip()
    command = ["git", "-C", str(package), "describe", "--always", "--dirty=+"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return None
