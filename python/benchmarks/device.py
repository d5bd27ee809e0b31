"""What only a GPU has: time of the device alone, memory, and layouts that change with each call.

Device time: the GPU is first kept busy, until the host has enqueued everything, so that no gap
between launches counts; a sample for which the GPU was early is taken again. The floor is one
memcpy of the outputs' bytes under the same conditions: cold, after its cache was overwritten, since
in real use the entries were written long ago, and warm, after the same call.

Memory is measured first, while there is nothing but the inputs: with room that other tensors
have left in torch's segments, a call would take none from the driver.
"""

from __future__ import annotations

import gc
import random
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import goflat

from . import workloads
from .measure import in_turns, numbers, turns
from .memory.clocks import cycles_per_s
from .peers import foreach_copy, replayed
from .steps import Step
from .ways import bound
from .workloads import JOBS, drawn, of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from .steps import Effort
    from .ways import Features, Way
    from .workloads import Job

SAMPLES = 15  # of each way and job, or fewer if that takes too long
LEAST_SAMPLES = 5
LONGEST_S = 4.0  # roughly, for the samples of a job
WALL_ROUNDS = 5
LAYOUTS = 8  # that take turns; RoI counts differ at each step of a detector
FLUSH_BYTES = 512 << 20  # more than the cache of any GPU so far
MARGIN_S = 5e-4  # of the busy time over the host's
DOUBLINGS = 3  # of the busy time of a way, before it is clear that no time is long enough
DEVICE_S, FRESH_S = 4.0, 1.0  # of a job, roughly
QUICK = ("many small", "many small, fresh")


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


def steps(only: Sequence[str] | None, effort: Effort) -> list[Step]:
    """Return a step for each job whose name begins with one of `only`."""

    def step(section: str, job: Any, cost_s: float, measure: Callable[..., Any]) -> Step:
        return Step(section, job.name, cost_s, lambda: measure(job, effort))

    chosen = [step("device", job, DEVICE_S, _measure) for job in JOBS]
    chosen += [step("fresh", job, FRESH_S, _fresh) for job in FRESH]
    if effort.quick:
        chosen = [step for step in chosen if step.name in QUICK]
    return [step for step in chosen if not only or step.name.split(",")[0] in only]


# ---- one job ----


def _measure(job: Job, effort: Effort) -> dict[str, Any]:
    _settle()
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
    makers = _making(dicts, job.dim)
    memory = {name: _memory(call) for name, call in makers.items()}
    runs = {**makers, **_keeping(dicts, job.dim, total)}
    _check(runs)
    most = 2 if effort.quick else SAMPLES
    return {
        **facts,
        "cold": sample(runs, cold=True, most=most),
        "warm": sample(runs, cold=False, most=most),
        "wall": in_turns(runs, effort._replace(rounds=min(effort.rounds, WALL_ROUNDS))),
        "memory": memory,
    }


def _making(dicts: list[Features], dim: int) -> dict[str, Way]:
    """Return the ways that allocate what they return; each goes through all dicts of a job."""

    def loop() -> list[Any]:
        return [
            torch.cat([d[k][b] for k in d], dim)
            for d in dicts
            for b in range(len(next(iter(d.values()))))
        ]

    return {
        "goflat": lambda: [out for d in dicts for out in goflat.flatten(d, dim=dim)],
        "loop": loop,
    }


def _keeping(dicts: list[Features], dim: int, total: int) -> dict[str, Way]:
    """Return the ways whose outputs are there before."""
    outs = [list(goflat.flatten(d, dim=dim)) for d in dicts]
    source = torch.empty(total, dtype=torch.uint8, device=workloads.DEVICE).random_()
    target = torch.empty_like(source)
    copies = [foreach_copy(d, dim) for d in dicts]
    again = [bound(d, dim) for d in dicts]
    return {
        "goflat out=": lambda: [
            out
            for d, o in zip(dicts, outs, strict=True)
            for out in goflat.flatten(d, dim=dim, out=o)
        ],
        "goflat bound": lambda: [out for way in again for out in way()],
        "graph": replayed(_making(dicts, dim)["loop"]),
        "foreach copy": lambda: [out for copy in copies for out in copy()],
        "memcpy": lambda: target.copy_(source),
    }


def _check(runs: dict[str, Way]) -> None:
    want = runs["loop"]()
    for name in runs.keys() - {"loop", "memcpy"}:
        pairs = zip(runs[name](), want, strict=True)
        if not all(torch.equal(g.view(torch.uint8), w.view(torch.uint8)) for g, w in pairs):
            raise AssertionError(f"{name} gives other values than the loop")


def sample(runs: dict[str, Way], *, cold: bool, most: int = SAMPLES) -> dict[str, Any]:
    """Return device seconds of all ways, which take turns if their cache is cold."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=workloads.DEVICE) if cold else None
    busy = {name: Busy(call) for name, call in runs.items()}
    slow_s = sum(2 * one.busy_s for one in busy.values())
    samples = min(most, max(LEAST_SAMPLES, int(LONGEST_S / slow_s)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    if flush is None:
        for name in runs:
            found[name] = [busy[name].seconds(None) for _ in range(samples)]
    for names in turns(list(runs), samples) if flush is not None else ():
        for name in names:
            found[name].append(busy[name].seconds(flush))
    return {name: {**numbers(found[name]), "early": busy[name].early} for name in runs}


class Busy:
    """Times a way on a GPU that has something else to do until all of it is enqueued."""

    def __init__(self, call: Way) -> None:
        self.call = call
        self.doublings, self.early = DOUBLINGS, 0
        call()
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        self.busy_s = self.first_s = 1.5 * (perf_counter() - start) + MARGIN_S
        torch.cuda.synchronize()

    def seconds(self, flush: Tensor | None) -> float:
        """Return the device's seconds; L2 is full of `flush`, or as a call before left it.

        No time is long enough for a way of more launches than the driver's queue holds: the host
        waits until the GPU has begun. Such samples are `early`.
        """
        seconds, early = self._once(flush)
        while early and self.doublings:
            self.doublings -= 1
            self.busy_s = 2 * self.busy_s if self.doublings else self.first_s
            seconds, early = self._once(flush)
        self.early += early
        return seconds

    def _once(self, flush: Tensor | None) -> tuple[float, bool]:
        """Return seconds, and whether the GPU got to the call before all of it was enqueued."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if flush is None:
            self.call()
        torch.cuda._sleep(int(self.busy_s * cycles_per_s()))
        if flush is not None:
            flush.zero_()
        start.record()
        result = self.call()
        end.record()
        early = start.query()
        end.synchronize()
        del result
        return start.elapsed_time(end) / 1e3, early


def _settle() -> None:
    """Give all that earlier jobs have left back to the driver."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _memory(call: Way) -> dict[str, int]:
    """Return by how many bytes the levels of torch's allocator rise at most during a call.

    That is not the first: what goflat sets up once is none of a call's.
    """
    call()
    _settle()
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
    for _ in range(2 if effort.quick else LAYOUTS):
        mixed = r.sample(flat, len(flat))
        rows = [mixed[k * job.batches :][: job.batches] for k in range(job.keys)]
        inputs.append(of_rows(rows, job.row_shape))
    one, turn, loop = inputs[0], cycle(inputs), cycle(inputs)
    runs: dict[str, Callable[[], Any]] = {
        "goflat": lambda: goflat.flatten(one),
        "goflat fresh": lambda: goflat.flatten(next(turn)),
        "zip fresh": lambda: [torch.cat(t) for t in zip(*next(loop).values())],  # noqa: B905
    }
    return {**job._asdict(), "layouts": len(inputs), "ways": in_turns(runs, effort)}
