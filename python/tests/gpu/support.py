"""Jobs on a GPU, the plain answer to them, and bitwise comparison: torch only, no NumPy.

GOFLAT_TEST_DEVICE=cpu is a dry run, to try tests of values where there is no GPU.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from helpers import child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Features = dict[str, list[Tensor]]

DEVICE = torch.device(os.environ.get("GOFLAT_TEST_DEVICE", "cuda"))
DRY = DEVICE.type == "cpu"
GIB = 1 << 30
ROWS = ((2, 1), (0, 4), (3, 2))  # of the small job: 3 keys x 2 batches, one entry empty

DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
    },
    key=str,
)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# ---- tensors ----


def raw(t: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as bytes."""
    assert t.is_contiguous()
    view = torch.empty(0, dtype=torch.uint8, device=t.device)
    start, count = t.storage_offset() * t.element_size(), t.numel() * t.element_size()
    return view.set_(t.untyped_storage(), start, (count,), (1,))


def bits(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = DEVICE) -> Tensor:
    """Return a new tensor of random bits; those of bool are 0 or 1."""
    t = torch.empty(tuple(shape), dtype=dtype, device=device)
    scramble(t)
    return t


def scramble(t: Tensor) -> None:
    """Write random bits to a contiguous tensor, on the current stream."""
    bytes_ = raw(t)
    bytes_.random_(0, 2 if t.dtype is torch.bool else 256)


def job(
    rows: Sequence[Sequence[int]] = ROWS,
    row_shape: Sequence[int] = (3,),
    dtype: torch.dtype = torch.float32,
    dim: int = 0,
    device: Any = DEVICE,
) -> Features:
    """Return a key-major job: ``rows[k][b]`` rows for key ``"k"`` and batch b."""
    return {
        str(k): [bits((*row_shape[:dim], n, *row_shape[dim:]), dtype, device) for n in line]
        for k, line in enumerate(rows)
    }


def seed_job() -> Features:
    """Return 4 keys x 4 batches of (50, 256, 7, 7) float32, 40 MB."""
    return job([[50] * 4] * 4, (256, 7, 7))


def entries(features: Features) -> list[Tensor]:
    return [t for line in features.values() for t in line]


def refill(features: Features) -> None:
    """Write new bits to all entries, on the current stream."""
    for t in entries(features):
        scramble(t)


# ---- views ----


def permuted(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits(tuple(shape)[::-1], dtype).permute(*reversed(range(len(shape))))


def stepped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits([2 * n for n in shape], dtype)[(slice(None, None, 2),) * len(shape)]


def cropped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits([n + 1 for n in shape], dtype)[(slice(1, None),) * len(shape)]


def expanded(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits([1] * len(shape), dtype).expand(*shape)


def rows_expanded(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits((1, *shape[1:]), dtype).expand(*shape)


def channels_last(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return bits((shape[0], *shape[2:], shape[1]), dtype).movedim(-1, 1)


def odd_unit_strides(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Contiguous but for the strides of dimensions of size 1, which mean nothing."""
    t = bits(shape, dtype)
    pairs = zip(t.shape, t.stride(), strict=True)
    return t.as_strided(t.shape, [s if n != 1 else 7 for n, s in pairs])


VIEWS: dict[str, Callable[[Sequence[int], torch.dtype], Tensor]] = {
    "contiguous": bits,
    "permuted": permuted,
    "stepped": stepped,
    "cropped": cropped,
    "expanded": expanded,
    "rows expanded": rows_expanded,
    "channels_last": channels_last,
    "odd unit strides": odd_unit_strides,
}


def random_job(seed: int) -> tuple[Features, int]:
    """Return a ragged job whose entries lie in memory in all ways, and the dim to join along."""
    r = random.Random(seed)
    dtype = r.choice((torch.uint8, torch.int16, torch.float32, torch.int64, torch.complex128))
    shape = [r.randint(1, 5) for _ in range(r.randint(1, 5))]
    if r.random() < 0.4:
        shape[r.randrange(len(shape))] = r.randint(100, 3000)
    dim, keys, batches = r.randrange(len(shape)), r.randint(1, 6), r.randint(1, 4)
    views = [bits] if r.random() < 0.3 else [v for v in VIEWS.values() if v is not channels_last]

    def entry() -> Tensor:
        extents = [*shape[:dim], max(0, r.randint(-1, 6)), *shape[dim + 1 :]]
        return r.choice(views)(extents, dtype)

    return {str(k): [entry() for _ in range(batches)] for k in range(keys)}, dim


# ---- answers ----


def oracle(features: Features, dim: int = 0) -> list[Tensor]:
    """Return what `flatten` must give, in integers of the same width: the loop it replaces."""
    columns = list(zip(*features.values(), strict=True))
    return [torch.cat([integers(t) for t in c], dim).contiguous() for c in columns]


def integers(t: Tensor) -> Tensor:
    """Return `t` as integers over the same bits, where there are some of that width."""
    plain = t.resolve_conj().resolve_neg()
    kind = _INTEGERS.get(plain.element_size())
    return plain if kind is None else plain.view(kind)


def check(features: Features, flat: Sequence[Tensor], dim: int = 0) -> None:
    """Assert that `flat` is the right answer: new contiguous tensors with the bits of torch.cat."""
    example = entries(features)[0]
    for out in flat:
        assert type(out) is torch.Tensor
        assert out.dtype is example.dtype
        assert out.untyped_storage().resizable()  # torch's own memory: record_stream works
    assert [out.device for out in flat] == [t.device for t in next(iter(features.values()))]
    check_bits(flat, oracle(features, dim))


def check_bits(flat: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Assert that the tensors of two lists have the same shapes and bits."""
    assert [tuple(out.shape) for out in flat] == [tuple(w.shape) for w in want]
    for b, (out, w) in enumerate(zip(flat, want, strict=True)):
        got, right = raw(out.contiguous()), raw(w)
        if not torch.equal(got, right):
            wrong = (got != right).nonzero()
            first = int(wrong[0])
            raise AssertionError(
                f"batch {b}: {len(wrong)} of {len(got)} bytes differ, first at byte {first}: "
                f"got {int(got[first])}, want {int(right[first])}"
            )


# ---- CUDA ----


def wait() -> None:
    """Wait for the GPU, and raise what went wrong there."""
    if not DRY:
        torch.cuda.synchronize()


@cache
def _cycles_per_ms() -> float:
    return max(_measured(20_000_000) for _ in range(4))  # an idle GPU's clock takes a while to rise


def _measured(cycles: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / start.elapsed_time(end)


def sleep(ms: float) -> None:
    """Keep the current stream busy for about `ms` milliseconds."""
    torch.cuda._sleep(int(ms * _cycles_per_ms()))


def requested() -> int:
    """Return the bytes that torch's allocator is asked for at the moment."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def growth(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `call` returns, and how far requested bytes rose meanwhile."""
    gc.collect()  # what earlier tests left must not go during the call,
    torch.cuda.empty_cache()  # nor blocks that waited for other streams
    torch.cuda.reset_peak_memory_stats()
    before = requested()
    result = call()
    return result, int(torch.cuda.memory_stats()["requested_bytes.all.peak"]) - before


def need(count: int) -> None:
    """Skip a test on a GPU without `count` bytes of free memory."""
    free, _ = torch.cuda.mem_get_info()
    if free < count:
        pytest.skip(f"needs {count / GIB:.0f} GiB of free memory, there are {free / GIB:.0f}")


def need_devices(count: int) -> None:
    """Skip a test on a machine with fewer GPUs."""
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs")


def run(code: str, **env: str) -> str:
    """Run `code` in a new interpreter, assert that it ends well, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child.environment(env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def failing(features: Any, **options: Any) -> None:
    """Make a call that must raise."""
    try:
        goflat.flatten(features, **options)
    except goflat.Error:
        return
    raise AssertionError("no error")
