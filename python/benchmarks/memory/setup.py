"""How a run is to go, and the shapes that its records share."""

from __future__ import annotations

from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ANY = 1 << 62  # as max_growth: any growth will do, and no warning


class Setup(NamedTuple):
    """What to measure on, and how long."""

    device: str = "cpu"
    samples: int = 11  # of each time
    seeds: int = 200  # random jobs where each one has to be right
    shrink: int = 1  # divides rows, to try a run out
    mode: str = "default"  # of torch's allocator, see `MODES`

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def draws(self, share: float) -> range:
        """Return the seeds of so large a share of the random jobs."""
        return range(max(1, round(self.seeds * share)))


MODES = {"default": "", "expandable_segments": "expandable_segments:True"}


class Item(NamedTuple):
    """One measurement: what is known before, and the call that finds out the rest."""

    facts: dict[str, Any]
    measure: Callable[[], dict[str, Any]]


def numbers(seconds: Sequence[float]) -> dict[str, Any]:
    """Return median and spread of times."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else [0.0] * 3
    return {"median_s": median(seconds), "iqr_s": high - low, "samples": len(seconds)}


def exactly(count: int | tuple[int, int]) -> int:
    """Return a number of a plan that was made from entries, and so is no range."""
    if isinstance(count, tuple):
        raise TypeError(f"{count} is a range")
    return count


def goal(name: str, value: float, limit: float, unit: str = "x") -> dict[str, Any]:
    """Return a number that is to be at most `limit`."""
    return {"name": name, "value": value, "limit": limit, "unit": unit, "met": value <= limit}
