"""Memory: exactly the outputs, nothing else on the device, nothing left behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    bits,
    check,
    entries,
    failing,
    growth,
    job,
    oracle,
    random_job,
    requested,
    run,
    seed_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("cuda")
SEED_BYTES = 16 * 50 * 256 * 7 * 7 * 4


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("packed", [False, True])
def test_growth_is_the_outputs(packed: bool) -> None:
    features = seed_job()
    flat, rose = growth(lambda: goflat.flatten(features, packed=packed))
    assert rose == SEED_BYTES
    assert requested() >= 2 * SEED_BYTES
    check(features, flat)


def test_growth_of_random_jobs() -> None:
    for seed in range(40):
        features, dim = random_job(seed)
        flat, rose = growth(lambda f=features, d=dim: goflat.flatten(f, dim=d))
        assert rose == sum(out.nbytes for out in flat), seed


def test_out_grows_nothing() -> None:
    features = seed_job()
    outs = [torch.empty(200, 256, 7, 7, device=DEVICE) for _ in range(4)]
    strided = [bits((200, 256, 7, 14))[..., ::2] for _ in range(4)]
    buffer = torch.empty(800, 256, 7, 7, device=DEVICE)
    for options in ({"out": outs}, {"out": strided}, {"out": buffer, "packed": True}):
        _, rose = growth(lambda o=options: goflat.flatten(features, **o))
        assert rose == 0


def test_errors_grow_nothing() -> None:
    features = seed_job()
    features["3"][3] = bits((50, 256, 7, 6))
    _, rose = growth(lambda: failing(features))
    assert rose == 0


def test_backward_grows_by_the_incoming_gradients_only() -> None:
    features = {k: [t.requires_grad_() for t in x] for k, x in seed_job().items()}
    scaled = {k: [t * 1 for t in x] for k, x in features.items()}
    flat = goflat.flatten(scaled)
    grads = [torch.ones_like(out) for out in flat]
    inputs = entries(scaled)
    parts, rose = growth(lambda: torch.autograd.grad(flat, inputs, grads))
    assert rose == 0
    assert all(bool((part == 1).all()) for part in parts)


def test_device_memory_outside_of_torch_is_flat() -> None:
    """Nothing is allocated on the device but by torch, from the second call on."""
    features = seed_job()
    many = {str(k): list(bits((500, 7)).split(1)) for k in range(20)}
    outs = [torch.empty(200, 256, 7, 7, device=DEVICE) for _ in range(4)]
    calls: list[Callable[[], Any]] = [
        lambda: goflat.flatten(features),
        lambda: goflat.flatten(features, out=outs),
        lambda: goflat.flatten(features, packed=True),
        lambda: goflat.flatten(many, packed=True),
    ]
    for call in calls:
        call()
    torch.cuda.synchronize()

    def others() -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    before = others()
    for n in range(1000):
        calls[n % len(calls)]()
    torch.cuda.synchronize()
    assert others() - before < 1 << 21


def test_20_000_calls_leak_nothing() -> None:
    features, wrong = job(), job()
    wrong["1"][1] = bits((2, 4))
    outs = [bits((5, 3)), bits((7, 3))]
    graph = {k: [t.clone().requires_grad_() for t in x] for k, x in job().items()}

    def all_kinds() -> None:
        goflat.flatten(features)
        goflat.flatten(features, packed=True)
        goflat.flatten(features, out=outs)
        failing(wrong)
        failing(features, out=outs[:1])
        goflat.flatten(graph)

    for _ in range(1000):
        all_kinds()
    torch.cuda.synchronize()
    gc.collect()
    device, host = requested(), resident()
    for n in range(20_000 // 6):
        all_kinds()
        if n % 500 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    gc.collect()
    assert requested() == device
    assert resident() - host < 8 << 20  # Go's heap breathes; 20,000 lost tensors would show


def test_outputs_survive_what_tensors_go_through(tmp_path: Path) -> None:
    features = seed_job()
    want = oracle(features)
    for out, w in zip(goflat.flatten(features), want, strict=True):
        host = w.view(torch.float32).cpu().view(torch.int32)
        assert torch.equal(out.clone().view(torch.int32), w)
        assert torch.equal(out.cpu().view(torch.int32), host)
        assert torch.equal(torch.from_dlpack(out).view(torch.int32), w)
        torch.save(out, tmp_path / "out.pt")
        assert torch.equal(torch.load(tmp_path / "out.pt").view(torch.int32), w)
        out.copy_(torch.zeros(out.shape))
        assert not bool(out.any())
        out.resize_(3)


def test_out_of_memory_is_ours_and_leaves_nothing() -> None:
    features = {"a": [bits((1 << 20, 64))], "b": [bits((1 << 20, 64))]}  # 512 MiB
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = requested()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        for _ in range(3):
            with pytest.raises(goflat.OutOfMemoryError, match="out of memory"):
                goflat.flatten(features)
        assert requested() == before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    check(features, goflat.flatten(features))
    del features
    torch.cuda.empty_cache()


def allocator_of_choice() -> None:
    """Run in a child: right values and a replayed graph on whatever allocator torch has there."""
    from gpu.test_graphs import capture, replays

    features = seed_job()
    check(features, goflat.flatten(features))
    for seed in range(20):
        jobs, dim = random_job(seed)
        check(jobs, goflat.flatten(jobs, dim=dim), dim)
    graph, flat = capture(lambda: goflat.flatten(features))
    replays(graph, features, flat)


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators(setting: str) -> None:
    code = "from gpu.test_memory import allocator_of_choice; allocator_of_choice()"
    run(code, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
