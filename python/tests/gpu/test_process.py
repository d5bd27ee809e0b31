"""The commands, and what import and exit do, on a machine with a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.support import run
from helpers import child

pytestmark = pytest.mark.usefixtures("cuda")


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "goflat", *arguments],
        env=child.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_doctor() -> None:
    assert command("doctor", "--gpu").endswith("\nhealthy\n")
    facts = json.loads(command("doctor", "--gpu", "--json"))
    assert facts["flatten cuda"]["text"] == "right, bit for bit"


def test_demo(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    text = command("demo", "--device", "cuda", "--rows", "20", "--json", str(file))
    assert text.count(" bit for bit\n") == 7
    result = json.loads(file.read_text())
    size = 4 * 4 * 20 * 256 * 7 * 7 * 4
    assert result["ways"]["goflat"]["inputs"] == size
    assert result["ways"]["goflat"]["growth"] == size
    for way in ("consume", "parts", "collect"):
        assert result["ways"][way]["growth"] == result["ways"][way]["planned"]
    assert result["ways"]["parts"]["growth"] == result["ways"]["collect"]["growth"] == 0


def test_benchmark(tmp_path: Path) -> None:
    """It runs and compares what is the same; no assertion looks at a time."""
    file, folder = tmp_path / "run.json", str(Path(__file__).parents[2])
    quick = "--rounds", "1", "--block", "1e-4", "--imports", "1", "--only", "square"
    environment = child.environment()
    environment["PYTHONPATH"] += os.pathsep + folder  # after an installed goflat
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--device", "cuda", *quick, "--json", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert result["machine"]["gpu"]["name"] in done.stdout
    assert [job["name"] for job in result["fresh"]] == ["square, fresh"]


def test_import_and_cpu_calls_leave_cuda_alone() -> None:
    run(
        """
import torch, goflat
goflat.flatten({"a": [torch.ones(3)]}, packed=True)
assert not torch.cuda.is_initialized()
assert "/dev/nvidia" not in open("/proc/self/maps").read()
"""
    )


def test_outputs_in_module_globals_at_exit() -> None:
    run(
        """
import torch, goflat
features = {"a": [torch.ones(3, device="cuda", requires_grad=True)] * 2}
flat = goflat.flatten(features)
packed = goflat.flatten({"a": [torch.ones(3, device="cuda")]}, packed=True)
with torch.cuda.stream(torch.cuda.Stream()):
    side = goflat.flatten({"a": [torch.ones(3, device="cuda")]})
"""
    )


def test_a_thread_makes_the_first_call() -> None:
    run(
        """
import threading, torch, goflat
from gpu.support import check, job
def work():
    features = job()
    check(features, goflat.flatten(features))
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
"""
    )


def test_a_context_that_torch_has_not_made_yet() -> None:
    """The first CUDA work of a thread whose current context is none."""
    run(
        """
import threading, torch, goflat
from gpu.support import check_bits, job, oracle
features = job()
done = []
def work():
    done.append(goflat.flatten(features))
thread = threading.Thread(target=work)
thread.start()
thread.join()
torch.cuda.synchronize()
check_bits(done[0], oracle(features))
"""
    )


def test_a_forked_child_raises_nothing_and_hangs_nothing() -> None:
    """CPU jobs in a child of a process that has used the GPU."""
    run(
        """
import os, warnings, torch, goflat
warnings.simplefilter("ignore")
goflat.flatten({"a": [torch.ones(3, device="cuda")]})
pid = os.fork()
if pid == 0:
    out, = goflat.flatten({"a": [torch.ones(3)], "b": [torch.zeros(2)]})
    os._exit(0 if out.tolist() == [1, 1, 1, 0, 0] else 1)
assert os.waitpid(pid, 0)[1] == 0
goflat.flatten({"a": [torch.ones(3, device="cuda")]})
torch.cuda.synchronize()
"""
    )
