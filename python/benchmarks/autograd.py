"""Host time of forward and backward: flatten against a loop of torch.cat.

    python python/benchmarks/autograd.py [--device cuda] [--repeat 200]

Prints one line a case: microseconds of forward, backward and both, the smallest of all repetitions,
which alternate; dropping the graph counts as backward. Work of a GPU is waited for before and after
each repetition and not in between, so that both passes show what the host does, unless the device
takes longer.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import torch

import goflat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    Features = dict[str, list[Tensor]]
    Join = Callable[[Features], Any]

CASES = {"8x8x(4,64)": (8, 8, (4, 64)), "64x32x(8,16)": (64, 32, (8, 16))}


def by_torch(features: Features) -> list[Tensor]:
    """Join in the loop that flatten replaces."""
    batches = len(next(iter(features.values())))
    return [torch.cat([features[key][b] for key in features]) for b in range(batches)]


WAYS: dict[str, Join] = {"torch.cat": by_torch, "goflat": goflat.flatten}


class Case:
    """Leaves, entries made of them, and gradients of the outputs."""

    def __init__(self, keys: int, batches: int, shape: tuple[int, int], entries: str) -> None:
        rows, self._batches, self._entries = shape[0], batches, entries
        whole = (batches * rows, shape[1])
        counts = range(keys) if entries == "parts" else range(keys * batches)
        leaf = whole if entries == "parts" else shape
        self.leaves = [torch.rand(leaf, requires_grad=True) for _ in counts]
        self.grads = [torch.rand(keys * rows, shape[1]) for _ in range(batches)]

    def features(self) -> Features:
        """Return leaves, or parts of one tensor for each key, as from a layer for all batches."""
        size = self._batches
        if self._entries == "parts":
            return {str(k): list(t.chunk(size)) for k, t in enumerate(self.leaves)}
        starts = range(0, len(self.leaves), size)
        return {str(k): self.leaves[s : s + size] for k, s in enumerate(starts)}

    def forget(self) -> None:
        """Let the next backward pass make new gradients."""
        for leaf in self.leaves:
            leaf.grad = None


def time_step(case: Case, join: Join, wait: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of one forward and one backward pass."""
    case.forget()
    features = case.features()
    wait()
    start = time.perf_counter()
    flat = join(features)
    middle = time.perf_counter()
    torch.autograd.backward(list(flat), case.grads)
    del flat
    end = time.perf_counter()
    wait()
    return middle - start, end - middle


def best(times: Iterable[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the smallest forward, backward and sum, in microseconds."""
    pairs = [(f * 1e6, b * 1e6) for f, b in times]
    return min(f for f, _ in pairs), min(b for _, b in pairs), min(f + b for f, b in pairs)


def compare(case: Case, repeat: int, wait: Callable[[], None]) -> dict[str, tuple[float, ...]]:
    """Time both ways, taking turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(repeat):
        for name, join in WAYS.items():
            times[name].append(time_step(case, join, wait))
    return {name: best(taken[len(taken) // 10 :]) for name, taken in times.items()}


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    wait = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    with torch.device(options.device):
        for name, shape in CASES.items():
            for entries in ("leaves", "parts"):
                found = compare(Case(*shape, entries), options.repeat, wait)
                want = found["torch.cat"][2]
                for way, numbers in found.items():
                    text = " ".join(f"{n:9.1f}" for n in numbers)
                    print(f"{name:14} {entries:7} {way:10} {text} {numbers[2] / want:6.2f}")


if __name__ == "__main__":
    main()
