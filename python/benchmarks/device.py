"""What only a GPU has: time of the device alone, memory, and layouts that change with each call.

Device time: the GPU is first kept busy, until the host has enqueued everything, so that no gap
between launches counts. The floor is one memcpy of the outputs' bytes under the same conditions:
cold, after its cache was overwritten, since in real use the entries were written long ago, and
warm, after the same call.
"""

from __future__ import annotations

import random
from itertools import cycle
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

from .measure import in_turns
from .ways import bound, foreach_copy, replayed
from .workloads import JOBS, drawn, of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from .measure import Effort
    from .ways import Features, Way
    from .workloads import Job

SAMPLES = 15  # of each way and job
WALL_ROUNDS = 5
LAYOUTS = 8  # that take turns; RoI counts differ at each step of a detector
FLUSH_BYTES = 512 << 20  # more than the cache of any GPU so far
BUSY_CYCLES = 20_000_000  # about 10 ms: the host part of all but the slowest ways is done before
BUSY_CYCLES_AN_ENTRY = 4_000  # what these need on top


class Fresh(NamedTuple):
    """Entries of (rows, \\*row_shape) float32, rows drawn from `least` to `most`."""

    name: str
    keys: int
    batches: int
    least: int
    most: int
    row_shape: tuple[int, ...]


FRESH = (
    Fresh("seed, fresh", 4, 4, 10, 90, (256, 7, 7)),
    Fresh("many small, fresh", 64, 32, 1, 15, (16,)),
    Fresh("square, fresh", 8, 8, 1, 7, (64,)),
)


def run(only: Sequence[str] | None, effort: Effort) -> dict[str, Any]:
    """Return both parts, each job whose name begins with one of `only`."""
    return {
        "device": [_measure(job, effort) for job in _chosen(JOBS, only)],
        "fresh": [_fresh(job, effort) for job in _chosen(FRESH, only)],
    }


def _chosen(jobs: Sequence[Any], only: Sequence[str] | None) -> list[Any]:
    return [job for job in jobs if not only or job.name.split(",")[0] in only]


# ---- one job ----


def _measure(job: Job, effort: Effort) -> dict[str, Any]:
    dicts = job.make()
    entries = [entry for d in dicts for column in d.values() for entry in column]
    total = sum(entry.numel() * entry.element_size() for entry in entries)
    facts = {
        "name": job.name,
        "about": job.about,
        "dim": job.dim,
        "entries": len(entries),
        "bytes": total,
    }
    need, (free, _) = 6 * total + FLUSH_BYTES, torch.cuda.mem_get_info()
    if need > free:
        return facts | {"skipped": f"needs {need} bytes, {free} are free"}
    runs = _ways(dicts, job.dim, total)
    _check(runs)
    busy = BUSY_CYCLES + BUSY_CYCLES_AN_ENTRY * len(entries)
    found = {
        **facts,
        "cold": _sample(runs, busy, torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")),
        "warm": _sample(runs, busy, None),
        "wall": in_turns(runs, effort._replace(rounds=min(effort.rounds, WALL_ROUNDS))),
        "memory": {name: _memory(call) for name, call in runs.items() if name in MADE},
    }
    torch.cuda.empty_cache()
    return found


MADE = ("goflat", "loop")  # ways that allocate what they return


def _ways(dicts: list[Features], dim: int, total: int) -> dict[str, Way]:
    """Return the ways for a job of some dicts; each goes through all of them."""
    outs = [list(goflat.flatten(d, dim=dim)) for d in dicts]
    source = torch.empty(total, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)

    def loop() -> list[Any]:
        return [
            torch.cat([d[k][b] for k in d], dim)
            for d in dicts
            for b in range(len(next(iter(d.values()))))
        ]

    copies = [foreach_copy(d, dim) for d in dicts]
    again = [way for d in dicts for way in bound(d, dim).values()]
    runs: dict[str, Way] = {
        "goflat": lambda: [out for d in dicts for out in goflat.flatten(d, dim=dim)],
        "goflat out=": lambda: [
            out
            for d, o in zip(dicts, outs, strict=True)
            for out in goflat.flatten(d, dim=dim, out=o)
        ],
        "loop": loop,
        "graph": replayed(loop),
        "foreach copy": lambda: [out for copy in copies for out in copy()],
        "memcpy": lambda: target.copy_(source),
    }
    return {
        **runs,
        **({"goflat bound": lambda: [o for way in again for o in way()]} if again else {}),
    }


def _check(runs: dict[str, Way]) -> None:
    want = runs["loop"]()
    for name in runs.keys() - {"loop", "memcpy"}:
        pairs = zip(runs[name](), want, strict=True)
        if not all(torch.equal(g.view(torch.uint8), w.view(torch.uint8)) for g, w in pairs):
            raise AssertionError(f"{name} gives other values than the loop")


def _sample(runs: dict[str, Way], busy: int, flush: Tensor | None) -> dict[str, Any]:
    """Return device seconds of all ways, which take turns if their cache is cold."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    if flush is None:
        for name, call in runs.items():
            found[name] = [_device_seconds(call, busy, None) for _ in range(SAMPLES)]
    else:
        names = list(runs)
        for n in range(SAMPLES):
            turn = n % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(_device_seconds(runs[name], busy, flush))
    return {name: _numbers(seconds) for name, seconds in found.items()}


def _device_seconds(call: Way, busy: int, flush: Tensor | None) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(busy)
    if flush is None:
        call()
    else:
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


def _memory(call: Way) -> dict[str, int]:
    """Return by how many bytes the levels of torch's allocator rise at most during a call."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    levels = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    before = torch.cuda.memory_stats()
    made = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del made
    return {
        level: after[f"{level}.all.peak"] - before[f"{level}.all.current"] for level in levels
    } | {"allocations": after["allocation.all.allocated"] - before["allocation.all.allocated"]}


# ---- layouts that change ----


def _fresh(job: Fresh, effort: Effort) -> dict[str, Any]:
    """Return wall seconds of a call whose layout is another one each time, and the same one.

    All layouts have the same rows in another order, so the same bytes move.
    """
    r = random.Random(1)
    flat = [n for of_key in drawn(job.keys, job.batches, job.least, job.most) for n in of_key]
    inputs = []
    for _ in range(LAYOUTS):
        mixed = r.sample(flat, len(flat))
        rows = [mixed[k * job.batches :][: job.batches] for k in range(job.keys)]
        inputs.append(of_rows(rows, job.row_shape))
    one, turn, loop = inputs[0], cycle(inputs), cycle(inputs)
    runs: dict[str, Callable[[], Any]] = {
        "goflat": lambda: goflat.flatten(one),
        "goflat fresh": lambda: goflat.flatten(next(turn)),
        "zip fresh": lambda: [torch.cat(t) for t in zip(*next(loop).values())],  # noqa: B905
    }
    return {**job._asdict(), "layouts": LAYOUTS, "ways": in_turns(runs, effort)}
