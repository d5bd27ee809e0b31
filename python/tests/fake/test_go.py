"""Tensors of torch into a program in Go and back: examples/go/dlpack."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .conftest import ROOT, build

if TYPE_CHECKING:
    from pathlib import Path

    from .place import Fake

EXAMPLE = ROOT / "examples" / "go" / "dlpack"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the example. It has a Go runtime of its own, so each test is a process without ours."""
    target = tmp_path_factory.mktemp("go") / "libjoin.so"
    go = (sys.executable, str(ROOT / "tools/toolchain.py"), "go")
    build(*go, "build", "-buildmode=c-shared", "-o", str(target), "./examples/go/dlpack")
    return target


def use(library: Path, device: str, **env: str) -> str:
    command = [sys.executable, str(EXAMPLE / "use.py"), str(library), device]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAID = """(7, 3) torch.float32 {device} from Go
goflat: shape: key "#1", batch 0: got (2, 4), want (*, 3)
"""


def test_cpu(library: Path) -> None:
    assert use(library, "cpu") == SAID.format(device="cpu")


def test_cuda(library: Path, fake: Fake, runtime: str) -> None:
    env = {"LD_PRELOAD": runtime, "CUDART": runtime, "LD_LIBRARY_PATH": str(fake.driver)}
    assert use(library, "cuda", **env) == SAID.format(device="cuda")
