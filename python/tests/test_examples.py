"""The scripts of examples/python run, and compare what they say they compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(script: Path) -> None:
    pytest.importorskip("torchvision")
    command = [sys.executable, str(script), "--images", "1", "--boxes", "20", "--size", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("results bit-equal") == 2, done.stdout
