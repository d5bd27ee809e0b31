"""``python -m goflat doctor``: what goflat found on this machine, and whether it works.

Each probe returns facts for ``--json`` and, as ``text``, the line for people; a ``problem`` is
what makes the answer "not healthy".
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import platform
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from importlib.util import find_spec
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any

from . import _api, _native, _show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Facts = dict[str, Any]

HELP = """\
Says what goflat found on this machine, and flattens small jobs to see whether it works: with torch,
NumPy, in a forked child, and with --gpu on a GPU."""

MORE = """\
examples:
  python -m goflat doctor
  python -m goflat doctor --gpu --json

exit codes:
  0  healthy
  1  not: each problem is named
  2  wrong options"""

_FRAMEWORKS = ("torch", "numpy")
FORK_S = 20  # a forked child that takes longer hangs

# How plain tensors are read, see goflat._native.
_TORCH_PATHS = (
    "asked about in Python, one by one: this torch's tensors failed the self-test",
    "told by two words of each tensor, then read one by one",
    "read by torch's C functions, outputs from torch.empty",
    "read and made by torch's C functions",
    "read in place, made by torch's C functions",
)
_EXCHANGE_API = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")  # DLPack 1.3 and 1.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``doctor``."""
    parser.add_argument("--gpu", action="store_true", help="start CUDA and check there, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def main(args: argparse.Namespace) -> int:
    """Print what there is; 0 if goflat is healthy, 1 if not."""
    with _show.progress(sys.stderr) as step:
        findings = examine(args.gpu, step)
    if args.json:
        print(json.dumps(findings, indent=2))
    else:
        _show.show(parts(findings), sys.stdout)
    return 0 if findings["healthy"] else 1


def examine(gpu: bool = False, step: _show.Step = _show.quiet) -> dict[str, Any]:
    """Run all probes.

    Parameters
    ----------
    gpu : bool
        Whether CUDA may be started. Without it the driver is looked for, not used.
    step : callable
        Is told the name of each probe, and which share of them is done.

    Returns
    -------
    dict
        ``healthy``, ``problems`` (a list of texts) and the facts of each probe under its name.
    """
    probes: dict[str, Callable[[], Facts]] = {
        "goflat": _goflat,
        "python": _python,
        "torch": _torch,
        "numpy": _numpy,
        "extension": extension,
        "cuda": lambda: _cuda(gpu),
        "flatten torch": lambda: _check("torch", "cpu"),
        "flatten numpy": lambda: _check("numpy", "cpu"),
        "forked child": _forked,
        **({"flatten cuda": lambda: _check("torch", "cuda")} if gpu else {}),
    }
    facts = {}
    for n, (name, probe) in enumerate(probes.items()):
        step(name, n / len(probes))
        facts[name] = _guarded(name, probe)
    problems = [fact["problem"] for fact in facts.values() if "problem" in fact]
    if not (facts["torch"]["version"] or facts["numpy"]["version"]):
        problems.append("there is nothing to flatten: install torch or NumPy")
    return {"healthy": not problems, "problems": problems, **facts}


def report(findings: dict[str, Any]) -> str:
    """Return the findings as plain text, one line per probe."""
    return _show.text(parts(findings))


def parts(findings: dict[str, Any]) -> list[_show.Part]:
    """Return the findings, one row per probe, and the verdict."""
    rows = [[name, fact["text"]] for name, fact in findings.items() if isinstance(fact, dict)]
    problems = [fill(f"problem: {text}", 92) for text in findings["problems"]]
    return [_show.Table(rows, left=(0, 1)), *(problems or ["healthy"])]


def _guarded(name: str, probe: Callable[[], Facts]) -> Facts:
    """Run a probe; one that breaks is a finding, too."""
    try:
        return probe()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return {"version": None, "text": text, "problem": f"{name}: {text}"}


# ---- probes ----


def version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def _goflat() -> Facts:
    place, found = str(import_module("goflat").__file__), version("goflat")
    return {"version": found, "file": place, "text": f"{found or 'not installed'}, {place}"}


def _python() -> Facts:
    libc = " ".join(platform.libc_ver()) or "another C library"
    system = f"{platform.system()} {platform.machine()}"
    found = platform.python_version()
    facts = {"version": found, "executable": sys.executable, "libc": libc, "system": system}
    return facts | {"text": f"{found}, {system}, {libc}"}


def _torch() -> Facts:
    if find_spec("torch") is None:
        return {"version": None, "text": "not installed"}
    torch = import_module("torch")
    facts: Facts = {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "exchange_api": any(hasattr(torch.Tensor, name) for name in _EXCHANGE_API),
        "self_test": None,
    }
    path = "joined by torch.cat: the extension is not used"
    if _native.available() and _native._meet_torch():
        facts["self_test"] = _native._met["torch"]
        path = _TORCH_PATHS[facts["self_test"]]
    api = "there" if facts["exchange_api"] else "missing"
    return facts | {"text": f"{facts['version']}; tensors are {path}; exchange API {api}"}


def _numpy() -> Facts:
    if find_spec("numpy") is None:
        return {"version": None, "text": "not installed"}
    found = import_module("numpy").__version__
    how = "read by the buffer protocol" if _native.available() else "joined by numpy.concatenate"
    return {"version": found, "text": f"{found}; arrays are {how}"}


def extension() -> Facts:
    """Say whether calls enter the extension, and why not."""
    spec = find_spec("goflat._core")
    facts: Facts = {
        "loaded": _native.available(),
        "file": spec and spec.origin,
        "engine": _engine(),
    }
    if _native.pure:
        return facts | {"text": f"none: {_native.reason}; same results, at the speed of torch.cat"}
    if not facts["loaded"]:
        why = _native.reason if spec else f"none is built for Python {platform.python_version()}"
        problem = f"the extension is not used: {why}; same results, at the speed of torch.cat"
        return facts | {"text": f"not used: {why}", "problem": problem}
    return facts | {"text": f"loaded, calls run on {facts['engine']}"}


def _engine() -> str:
    return _api._engine.__module__.removeprefix("goflat._")


def _cuda(start: bool) -> Facts:
    """Look for the driver, whose loading starts nothing, and ask torch if `start`."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")._name + " found"
    except OSError as error:
        driver = str(error)
    if find_spec("torch") is None:
        return {"driver": driver, "text": driver}
    torch = import_module("torch")
    built = torch.version.cuda
    facts: Facts = {"driver": driver, "torch_built_for": built}
    text = f"{driver}; torch is built {f'for CUDA {built}' if built else 'without CUDA'}"
    if not start:
        return facts | {"text": f"{text}; not started, which --gpu does"}
    facts["devices"] = _devices(torch)
    if not facts["devices"]:
        text = f"{text}; torch sees no device"
        return facts | {"text": text, "problem": f"CUDA was asked for: {text}"}
    return facts | {"text": f"{text}; {', '.join(facts['devices'])}"}


def _devices(torch: Any) -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


# ---- checks ----


def _check(framework: str, device: str) -> Facts:
    """Flatten small jobs and compare with the framework's own concatenation."""
    if find_spec(framework) is None:
        return {"text": f"skipped: {framework} is not installed"}
    wrong = _wrong_tensors(device) if framework == "torch" else _wrong_arrays()
    if wrong:
        return _wrong(f"flatten of {framework} on {device}", f"gave wrong values: {wrong}")
    return {"text": "right, bit for bit"}


def _wrong(what: str, how: str) -> Facts:
    return {"text": how, "problem": f"{what} {how}"}


def _wrong_tensors(device: str) -> str:
    """Name the first job of tensors that comes out wrong, or return ""."""
    torch = import_module("torch")
    whole = torch.arange(7 * 24, device=device).reshape(7, 4, 6)
    jobs = {
        "contiguous float32": whole.float(),
        "strided int16": whole.to(torch.int16).transpose(1, 2)[:, ::2],
        "bfloat16": whole.to(torch.bfloat16),
    }
    for name, source in jobs.items():
        features = _cut(source)
        got = _api.flatten(features)
        want = [torch.cat(column) for column in zip(*features.values(), strict=True)]
        if not all(map(torch.equal, got, want)) or not all(out.is_contiguous() for out in got):
            return name
    return ""


def _wrong_arrays() -> str:
    """Name the first job of arrays that comes out wrong, or return ""."""
    np = import_module("numpy")
    whole = np.arange(7 * 24).reshape(7, 4, 6)
    jobs = {
        "contiguous float32": whole.astype(np.float32),
        "strided int16": whole.astype(np.int16).transpose(0, 2, 1)[:, ::2],
        "big-endian int32": whole.astype(">i4"),
    }
    for name, source in jobs.items():
        features = _cut(source)
        got = _api.flatten(features)
        want = [np.concatenate(column) for column in zip(*features.values(), strict=True)]
        if not all(map(np.array_equal, got, want)):
            return name
    return ""


def _cut(source: Any) -> dict[str, list[Any]]:
    """Return a job of 3 keys and 2 batches from 7 rows; one entry has none."""
    bounds = (0, 2, 3, 3, 5, 6, 7)
    parts = [source[i:j] for i, j in pairwise(bounds)]
    return {"a": parts[0:2], "b": parts[2:4], "c": parts[4:6]}


def _forked() -> Facts:
    """Flatten in a child made by fork, where the extension must step aside."""
    if not hasattr(os, "fork"):
        return {"text": "skipped: this system has no fork"}
    if not any(map(find_spec, _FRAMEWORKS)):
        return {"text": "skipped: neither torch nor NumPy is installed"}
    child = multiprocessing.get_context("fork").Process(target=_in_child)
    with warnings.catch_warnings():
        for kind in DeprecationWarning, RuntimeWarning:  # Python's and JAX's: fork loses threads
            warnings.simplefilter("ignore", kind)
        child.start()
    child.join(FORK_S)
    if child.exitcode is None:
        child.kill()
        return _wrong("a forked child", f"hung for {FORK_S} s")
    if child.exitcode != 0:
        return _wrong("a forked child", f"ended with exit code {child.exitcode}")
    return {"text": "right, bit for bit"}


def _in_child() -> None:
    warnings.filterwarnings("ignore", "goflat runs in pure Python")  # as it should, here
    wrong = [f for f in _FRAMEWORKS if "problem" in _check(f, "cpu")]
    sys.exit(len(wrong))
