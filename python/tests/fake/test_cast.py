"""``dtype=`` of tensors on the fake devices: one launch for a type of sources.

What torch makes of numbers there cannot be asked, so the rules are those of its CPU and NaNs are
left out; python/tests/gpu/test_cast.py has all of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import goflat
from fake.contexts import driver, on_torch
from goflat import _api, _native, _proofs
from helpers.compare import assert_bits
from helpers.patterns import FLOATS, patterns

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


def assume() -> None:
    """Say that the devices convert as the CPU does, and let nothing but the extension convert."""
    most = int(torch.full((1,), 1000.0).to(torch.float8_e4m3fn).view(torch.uint8).item())
    rules = {torch.bfloat16: 0x7FFF, torch.float8_e4m3fn: most}

    def prove(device: torch.device, sources: set[torch.dtype], like: Tensor) -> bool:
        everything = (1 << len(FLOATS)) - 1
        number = FLOATS.index(like.dtype)
        _native._core.bridge_Prove(
            device.index, number, rules.get(like.dtype, 0), everything, everything
        )  # type: ignore[union-attr]
        return True

    def left(*_: Any) -> Any:
        raise AssertionError("left to torch")

    _proofs.prove = prove
    _api._cast_in_python = left


def on(device: int, t: Tensor) -> Tensor:
    """Return `t` on a device, with its strides."""
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
    steps = zip(t.shape, t.stride(), strict=True)
    span = 1 + sum((n - 1) * step for n, step in steps) if t.numel() else 0
    flat = made.as_strided((span,), (1,))
    flat.copy_(t.as_strided((span,), (1,), t.storage_offset()))
    return made


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Return values of `dtype`, but no NaNs."""
    values = patterns(dtype)
    codes = values.view(INTEGERS[dtype.itemsize])[~values.float().isnan()]  # torch 2.6 picks no fp8
    count = int(torch.tensor(shape).prod())
    at = torch.randint(len(codes), (count,), generator=torch.Generator().manual_seed(seed))
    return codes[at].view(dtype).view(shape)


def launches() -> list[str]:
    """Return the kernels launched since the last time."""
    lib = driver()
    log = [lib.fakecuda_call(i).decode() for i in range(lib.fakecuda_calls())]
    lib.fakecuda_reset()
    return [call.split()[1] for call in log if call.startswith("cuLaunch")]


@on_torch()
def test_every_pair() -> None:
    assume()
    for source in FLOATS:
        entries = [numbers(source, n, 3, seed=n) for n in (7, 1, 0, 90)]
        moved = [on(0, entry) for entry in entries]
        for target in FLOATS:
            want = torch.cat([entry.to(target) for entry in entries])
            assert_bits(goflat.cat(moved, dtype=target).cpu(), want)


@on_torch()
def test_mixed_dtypes() -> None:
    assume()
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float8_e5m2: "e5m2"}
    sources = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")
    grid = {str(d): [numbers(d, n, 4, seed=n) for n in (3, 0, 5)] for d in FLOATS}
    moved = {key: [on(1, entry) for entry in line] for key, line in grid.items()}
    for target, name in names.items():
        want = [torch.cat([line[b].to(target) for line in grid.values()]) for b in range(3)]
        goflat.flatten(moved, dtype=target)
        launches()
        kernels = [f"cast_{source}_{name}_4k" for source in sources]
        flat = goflat.flatten(moved, dtype=target)
        assert launches() == kernels
        packed = goflat.flatten(moved, dtype=target, packed=True)
        assert launches() == kernels
        outs = [torch.empty_like(t, device=1) for t in want]
        given = goflat.flatten(moved, dtype=target, out=outs)
        assert launches() == kernels
        for results in (flat, packed, given):
            for got, expected in zip(results, want, strict=True):
                assert_bits(got.cpu(), expected)
        assert packed.buffer is not None
        assert_bits(packed.buffer.cpu(), torch.cat(want))
        assert flat.layout.dtype is target
        assert flat.layout.devices == (torch.device("cuda:1"),) * 3
        growth = sum(t.numel() for t in want) * target.itemsize
        assert flat.plan.growth == goflat.plan(moved, dtype=target).growth == growth
        assert given.plan.growth == 0


@on_torch()
def test_random_jobs() -> None:
    assume()
    r = random.Random(8)
    for seed in range(30):
        shape = [r.choice((1, 2, 5, 40, 300)) for _ in range(r.randrange(1, 4))]
        dim, target = r.randrange(len(shape)), r.choice(FLOATS)
        dtypes = r.sample(FLOATS, r.choice((1, 1, 3)))
        entries = []
        for _ in range(r.randrange(1, 5)):
            shape[dim] = r.choice((0, 1, 3, 17))
            entry = numbers(r.choice(dtypes), *shape, seed=seed)
            order = r.sample(range(len(shape)), len(shape)) if r.random() < 0.4 else None
            if order:
                back = sorted(range(len(shape)), key=order.__getitem__)
                entry = entry.permute(order).contiguous().permute(back)
            entries.append(entry)
        want = torch.cat([entry.to(target) for entry in entries], dim)
        moved = [on(0, entry) for entry in entries]
        assert_bits(goflat.cat(moved, dim, dtype=target).cpu(), want.contiguous())
        out = on(0, torch.zeros(tuple(reversed(want.shape)), dtype=target)).permute(
            *reversed(range(want.dim()))
        )
        goflat.cat(moved, dim, out=out, dtype=target)
        assert_bits(out.cpu().contiguous(), want.contiguous())


@on_torch()
def test_bound() -> None:
    assume()
    grid = {"a": [numbers(torch.float32, 5, 3)], "b": [numbers(torch.float16, 2, 3)]}
    moved = {key: [on(0, entry) for entry in line] for key, line in grid.items()}
    bound = goflat.plan(moved, dtype=torch.bfloat16).bind(moved)
    again = numbers(torch.float32, 5, 3, seed=4)
    moved["a"][0].copy_(again)
    launches()
    bound()
    assert launches() == ["cast_f32_bf16_4k", "cast_f16_bf16_4k"]
    want = torch.cat([again.bfloat16(), grid["b"][0].bfloat16()])
    assert_bits(bound.flat[0].cpu(), want)


@on_torch()
def test_gradients_are_cast_back() -> None:
    assume()
    half = on(0, numbers(torch.float16, 2, 3)).requires_grad_()
    single = on(0, numbers(torch.float32, 4, 3)).requires_grad_()
    (out,) = goflat.flatten({"a": [single], "b": [half]}, dtype=torch.float32)
    assert_bits(out.detach().cpu(), torch.cat([single.detach().cpu(), half.detach().cpu().float()]))
    (grad,) = torch.autograd.grad(out, single, on(0, torch.arange(18.0).view(6, 3)))
    assert_bits(grad.cpu(), torch.arange(12.0).view(4, 3))


@on_torch()
def test_what_is_refused() -> None:
    assume()
    entry, wide = on(0, torch.zeros(2, 3)), on(0, torch.zeros(2, 4))
    half = torch.empty(4, 3, dtype=torch.float16, device=0)
    for call, error in (
        (lambda: goflat.cat([entry, wide], dtype=torch.half), goflat.ShapeError),
        (lambda: goflat.cat([entry], out=entry, dtype=torch.half), goflat.DTypeError),
        (lambda: goflat.cat([entry], out=half, dtype=torch.half), goflat.ShapeError),
        (
            lambda: goflat.flatten({"a": [entry, entry]}, out=[half[:2]] * 2, dtype=torch.half),
            goflat.Error,
        ),
    ):
        with pytest.raises(error):
            call()


@on_torch()
def test_what_is_left_to_torch() -> None:
    assume()
    entry = on(0, torch.zeros(2, 3))
    over = entry.view(torch.float16)[:, :3]
    for call in (
        lambda: goflat.cat([entry], out=over, dtype=torch.half),
        lambda: goflat.cat([torch.zeros(3, 2).t()], dtype=torch.half),
        lambda: goflat.cat([torch.empty(2, dtype=torch.int32, device=0)], dtype=torch.half),
    ):
        with pytest.raises(AssertionError, match="left to torch"):
            call()
