"""Wall time over the total size at a fixed number of entries, and over that number at a fixed size.

All entries of a job are alike, rows of 16 bytes; only what a plot has room for is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .measure import check, in_turns
from .report import size
from .steps import Step
from .ways import ways

if TYPE_CHECKING:
    from .steps import Effort

WAYS = ("goflat", "goflat packed", "loop", "zip", "split", "copy")
ROW = 4  # float32
KB = 1 << 10
GB = 1 << 30
COUNT = 64  # entries while the size changes
BYTES = 16 << 20  # while their number changes
SIZES = tuple(KB << n for n in range(0, 21, 2))
COUNTS = (2, 8, 32, 128, 512, 2048, 8192, 30_000)
MOST_BATCHES = 8
ROUNDS = 5
SLOW_ROUNDS = 3  # where a call takes longest
SLOW_S = 0.05
BLOCK_S = 0.005
NEEDED = 5  # times the bytes of a job: entries, and what ways hold and make
SPEED = {"cpu": 2e9, "cuda": 1e12}  # bytes a second, roughly, for what a step costs
ENTRY_S = 1e-6


class Point(NamedTuple):
    """A job of equal entries: in a curve over `axis`."""

    axis: str
    entries: int
    bytes: int

    @property
    def batches(self) -> int:
        """Return up to 8, and at least two keys."""
        return min(MOST_BATCHES, max(1, self.entries // 2))

    @property
    def rows(self) -> int:
        """Return rows of an entry, at least one."""
        return max(1, self.bytes // self.entries // (4 * ROW))

    def features(self, device: str) -> dict[str, list[Any]]:
        """Return the entries, each in memory of its own."""
        keys, batches = self.entries // self.batches, range(self.batches)
        shape = (self.rows, ROW)
        return {str(k): [torch.rand(shape, device=device) for _ in batches] for k in range(keys)}


SIZE_CURVE = tuple(Point("bytes", COUNT, size) for size in SIZES)
COUNT_CURVE = tuple(Point("entries", count, BYTES) for count in COUNTS)


def steps(effort: Effort, device: str) -> list[Step]:
    """Return a step for each point."""
    points = (*SIZE_CURVE, *COUNT_CURVE)
    if effort.quick:
        points = (SIZE_CURVE[0], SIZE_CURVE[3], COUNT_CURVE[0], COUNT_CURVE[2])
    mine = effort._replace(rounds=min(ROUNDS, effort.rounds), block_s=min(BLOCK_S, effort.block_s))

    def step(point: Point) -> Step:
        a_call_s = point.bytes / SPEED[device] + point.entries * ENTRY_S
        slow = mine._replace(rounds=min(SLOW_ROUNDS, mine.rounds))
        how = slow if a_call_s > SLOW_S else mine
        cost_s = 0.1 + len(WAYS) * (how.rounds + 3) * max(how.block_s, a_call_s)
        name = f"{point.entries} entries, {size(point.bytes)}"
        return Step("sweep", name, cost_s, lambda: measure(point, how, device))

    return [step(point) for point in points]


def measure(point: Point, effort: Effort, device: str) -> dict[str, Any]:
    """Return seconds of each way, unless the memory is too small."""
    facts = {**point._asdict(), "batches": point.batches, "row_bytes": 4 * ROW}
    need, free = NEEDED * point.bytes, _free(device)
    if need > free:
        return {**facts, "skipped": f"needs {need} bytes, {free} are free"}
    features = point.features(device)
    real = point.entries * point.rows * 4 * ROW
    runs = ways("torch", features, WAYS).runs
    check(runs)
    found = {**facts, "bytes": real, "ways": in_turns(runs, effort)}
    if device == "cuda":
        del runs, features
        torch.cuda.empty_cache()
    return found


def _free(device: str) -> int:
    """Return bytes that are to be had."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
