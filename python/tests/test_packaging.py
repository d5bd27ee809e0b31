"""How goflat is built and installed: the pure-Python wheel, and builds that lack something."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from goflat import _pure
from helpers import child

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return import_module


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel for any system, and unpack it as pip does."""
    folder = tmp_path_factory.mktemp("pure")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    source = ["--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run([*pip, *source], check=True, env={**os.environ, "GOFLAT_PURE": "1"})
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder / "site")
    return folder / "site"


def in_pure(pure: Path, code: str) -> str:
    """Run code where that wheel is installed; no warning, of whatever kind."""
    env = {**child.environment(), "PYTHONPATH": str(pure)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_pure_wheel_works_and_does_not_warn(pure: Path) -> None:
    code = """
import numpy as np, goflat
flat = goflat.flatten({"a": [np.ones((2, 3))], "b": [np.zeros((1, 3))]})
assert flat[0].shape == (3, 3)
print(goflat.__file__)
"""
    assert in_pure(pure, code).startswith(str(pure))


def test_the_doctor_of_the_pure_wheel_says_so_in_one_line(pure: Path) -> None:
    code = "from goflat import _doctor; print(_doctor.report(_doctor.examine()))"
    lines = in_pure(pure, code).splitlines()
    (extension,) = (line for line in lines if line.startswith("extension"))
    assert _pure.WHY in extension
    assert lines[-1] == "healthy"


def test_metadata_of_the_wheel(pure: Path) -> None:
    (metadata,) = pure.glob("goflat-*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    for line in ("License-Expression: Apache-2.0", "License-File: NOTICE", "Provides-Extra: torch"):
        assert line in lines
    assert any(line.startswith("Classifier: Programming Language :: Python :: 3") for line in lines)
    assert not any("License ::" in line for line in lines)  # refused beside License-Expression


@pytest.mark.parametrize(("value", "wanted"), [("1", False), ("0", True), ("", True)])
def test_the_pure_wheel_asks_for_no_toolchain(
    tool: Any, monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool
) -> None:
    toolchain = tool("toolchain")
    monkeypatch.setattr(toolchain, "supported", lambda: True)
    monkeypatch.setenv("GOFLAT_PURE", value)
    assert bool(toolchain.requires()) is wanted


def test_elsewhere_there_is_nothing_to_build(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = tool("toolchain")
    monkeypatch.setattr(toolchain, "supported", lambda: False)
    assert toolchain.requires() == []


def test_a_build_says_all_that_it_lacks(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = tool("toolchain")
    monkeypatch.setattr(toolchain, "candidates", list)
    monkeypatch.setattr(toolchain, "CUDA_HEADERS", "no-such-package")
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(toolchain.ToolchainError) as caught:
        toolchain.check()
    said = str(caught.value).splitlines()
    assert len(said) == 4
    for part in ("Go ", "no-such-compiler", "no-such-package", "pybindgen"):
        assert any(part in line for line in said)


def test_zig_is_kept_from_the_glibc_of_the_machine(tool: Any) -> None:
    given = ["-I/usr/include", "-I/usr/include/", "-L/usr/lib/x86_64-linux-gnu/", "-L/usr/lib64"]
    kept = ["-I/usr/include/python3.11", "-L/usr/local/cuda/lib64", "-lcuda", "-c"]
    assert tool("zigcc").arguments([*given, *kept])[3:] == kept
