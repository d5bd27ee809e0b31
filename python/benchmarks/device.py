"""What only a GPU has: time of the device alone, and layouts that change with each call.

Device time: the GPU is first kept busy, until the host has enqueued everything, so that no gap
between launches counts; and its cache is overwritten, since in real use the entries were written
long ago. The floor is one memcpy of the outputs' bytes under the same conditions.
"""

from __future__ import annotations

import random
from itertools import cycle
from math import prod
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

from .cases import ELEM_BYTES
from .measure import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from .measure import Effort
    from .ways import Features

SAMPLES = 25  # of each way and job
LAYOUTS = 8  # that take turns; RoI counts differ at each step of a detector
FLUSH_BYTES = 512 << 20  # more than the cache of any GPU so far
BUSY_CYCLES = 20_000_000  # about 10 ms: the slowest way's host part is done before


class Job(NamedTuple):
    """Entries of (rows, \\*row_shape) float32, rows drawn from `least` to `most`."""

    name: str
    keys: int
    batches: int
    least: int
    most: int
    row_shape: tuple[int, ...]
    dim: int = 0

    def rows(self) -> list[int]:
        """Return the rows of each entry, the same ones at each run."""
        r = random.Random(0)
        return [r.randint(self.least, self.most) for _ in range(self.keys * self.batches)]

    def features(self, rows: Sequence[int]) -> Features:
        """Return entries of `rows` rows."""
        before, after = self.row_shape[: self.dim], self.row_shape[self.dim :]
        made = iter(rows)
        return {
            str(k): [
                torch.rand((*before, next(made), *after), device="cuda")
                for _ in range(self.batches)
            ]
            for k in range(self.keys)
        }


JOBS = (
    Job("seed", 4, 4, 50, 50, (256, 7, 7)),
    Job("uniform", 16, 16, 250, 250, (256, 7, 7)),  # 3.2 GB
    Job("ragged", 16, 16, 1, 300, (256, 7, 7)),  # 1.9 GB
    Job("short rows", 64, 32, 1, 40, (260,)),
    Job("many small", 64, 32, 8, 8, (16,)),
    Job("many keys", 256, 4, 16, 16, (256,)),
    Job("seed, dim 1", 4, 4, 50, 50, (256, 7, 7), 1),
)
FRESH = (
    Job("seed, fresh", 4, 4, 10, 90, (256, 7, 7)),
    Job("many small, fresh", 64, 32, 1, 15, (16,)),
    Job("square, fresh", 8, 8, 1, 7, (64,)),
)


def run(only: Sequence[str] | None, effort: Effort) -> dict[str, Any]:
    """Return both parts, each job whose name begins with one of `only`."""
    return {
        "device": [_measure(job) for job in _chosen(JOBS, only)],
        "fresh": [_fresh(job, effort) for job in _chosen(FRESH, only)],
    }


def _chosen(jobs: Sequence[Job], only: Sequence[str] | None) -> list[Job]:
    return [job for job in jobs if not only or job.name.split(",")[0] in only]


# ---- device time ----


def _measure(job: Job) -> dict[str, Any]:
    total = sum(job.rows()) * prod(job.row_shape) * ELEM_BYTES
    facts: dict[str, Any] = {**job._asdict(), "bytes": total}
    need, (free, _) = 6 * total + FLUSH_BYTES, torch.cuda.mem_get_info()
    if need > free:
        return facts | {"skipped": f"needs {need} bytes, {free} are free"}
    runs = _ways(job.features(job.rows()), job.dim, total)
    _check(runs)
    seconds = _sample(runs)
    torch.cuda.empty_cache()
    return facts | {"ways": {name: _numbers(found) for name, found in seconds.items()}}


def _ways(d: Features, dim: int, total: int) -> dict[str, Callable[[], Any]]:
    batches = range(len(next(iter(d.values()))))
    outs = list(goflat.flatten(d, dim=dim))
    source = torch.empty(total, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return {
        "goflat": lambda: goflat.flatten(d, dim=dim),
        "goflat out=": lambda: goflat.flatten(d, dim=dim, out=outs),
        "loop": lambda: [torch.cat([d[k][b] for k in d], dim) for b in batches],
        "memcpy": lambda: target.copy_(source),
    }


def _check(runs: dict[str, Callable[[], Any]]) -> None:
    want = runs["loop"]()
    for name in ("goflat", "goflat out="):
        pairs = zip(runs[name](), want, strict=True)
        if not all(torch.equal(g.view(torch.int32), w.view(torch.int32)) for g, w in pairs):
            raise AssertionError(f"{name} gives other values than the loop")


def _sample(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return device seconds of all ways, which take turns."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for n in range(SAMPLES):
        turn = n % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(_device_seconds(runs[name], flush))
    return found


def _device_seconds(call: Callable[[], Any], flush: Tensor) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY_CYCLES)
    flush.zero_()
    start.record()
    result = call()
    end.record()
    end.synchronize()
    del result
    return start.elapsed_time(end) / 1e3


def _numbers(seconds: list[float]) -> dict[str, Any]:
    low, _, high = quantiles(seconds, n=4)
    return {"median_s": median(seconds), "iqr_s": high - low, "samples": len(seconds)}


# ---- layouts that change ----


def _fresh(job: Job, effort: Effort) -> dict[str, Any]:
    """Return wall seconds of a call whose layout is another one each time, and the same one.

    All layouts have the same rows in another order, so the same bytes move.
    """
    rows, r = job.rows(), random.Random(1)
    inputs = [job.features(r.sample(rows, len(rows))) for _ in range(LAYOUTS)]
    one, turn, loop = inputs[0], cycle(inputs), cycle(inputs)
    runs: dict[str, Callable[[], Any]] = {
        "goflat": lambda: goflat.flatten(one),
        "goflat fresh": lambda: goflat.flatten(next(turn)),
        "zip fresh": lambda: [torch.cat(t) for t in zip(*next(loop).values())],  # noqa: B905
    }
    return {**job._asdict(), "layouts": LAYOUTS, "ways": in_turns(runs, effort)}
