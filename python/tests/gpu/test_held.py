"""memory() on a GPU: the bytes that come on top of what torch's allocator counts."""

from __future__ import annotations

import pytest
import torch

import goflat
from gpu.support import DEVICE, bits, random_job, run, seed_job

pytestmark = pytest.mark.usefixtures("cuda")


def copies() -> None:
    """Run in a child: copying keeps nothing on the device, whatever the job."""
    features = seed_job()
    outs = [torch.empty(200, 256, 7, 7, device=DEVICE) for _ in range(4)]
    goflat.flatten(features)
    goflat.flatten(features, out=outs)
    goflat.flatten({str(k): list(bits((500, 7)).split(1)) for k in range(20)}, packed=True)
    for seed in range(20):
        jobs, dim = random_job(seed)
        goflat.flatten(jobs, dim=dim)
    arena = goflat.Arena(goflat.Layout.of(features))
    arena.put("0", 0, features["0"][0])
    assert goflat.memory() == {}


def test_copies_keep_nothing() -> None:
    run("from gpu.test_held import copies; copies()")


def test_asking_starts_no_cuda() -> None:
    run("import torch, goflat; goflat.memory(); assert not torch.cuda.is_initialized()")


def test_devices_are_named_as_torch_names_them() -> None:
    held = goflat.memory()
    assert all(str(torch.device(name)) == name and count > 0 for name, count in held.items())
