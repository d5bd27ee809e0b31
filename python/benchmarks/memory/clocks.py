"""Time of one call that uses its input up, so that each sample needs a new one."""

from __future__ import annotations

from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .meters import wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .setup import Setup

FLUSH_BYTES = 512 << 20  # more than the cache of any GPU so far
MARGIN_S = 4e-3  # of the device's sleep over the host's part
LONGEST_S = 0.1


class Subject(NamedTuple):
    """Something to time: make its input, write to it, use it up."""

    make: Callable[[], Any]
    write: Callable[[Any], object]
    call: Callable[[Any], Any]


class Sample(NamedTuple):
    """Seconds of one call."""

    whole: float  # until its result is there
    host: float  # until it returns


def wall(subject: Subject, setup: Setup, flush: Tensor | None = None) -> Sample:
    """Time a call on an idle device, with L2 full of other data if there is something to flush."""
    given = subject.make()
    subject.write(given)
    if flush is not None:
        flush.zero_()
    wait(setup)
    start = perf_counter()
    result = subject.call(given)
    host = perf_counter() - start
    wait(setup)
    whole = perf_counter() - start
    del result
    return Sample(whole, host)


def device(subject: Subject, host_s: float, flush: Tensor | None = None) -> Sample:
    """Return device seconds of a call, and those of the host while the device sleeps.

    The device sleeps until the host, which takes `host_s`, has enqueued everything: no gap counts.
    L2 is as writing the input left it, or full of other data if there is something to flush.
    """
    given = subject.make()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(min(LONGEST_S, 2 * host_s + MARGIN_S) * cycles_per_s()))
    subject.write(given)
    if flush is not None:
        flush.zero_()
    start.record()
    begin = perf_counter()
    result = subject.call(given)
    host = perf_counter() - begin
    end.record()
    end.synchronize()
    del result
    return Sample(start.elapsed_time(end) / 1e3, host)


@cache
def cycles_per_s() -> float:
    """Return how many cycles the device sleeps in a second."""
    return max(_measured(20_000_000) for _ in range(4))  # an idle GPU's clock takes a while to rise


def _measured(cycles: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return 1e3 * cycles / start.elapsed_time(end)
