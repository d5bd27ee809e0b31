"""The jobs, as data."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

ELEM_BYTES = 4  # all are float32


class Case(NamedTuple):
    """A job of keys x batches entries of one shape."""

    name: str
    keys: int
    batches: int
    shape: tuple[int, ...]
    library: str = "torch"

    @property
    def title(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"{self.keys}x{self.batches}x({shape}) {self.library}"

    @property
    def bytes(self) -> int:
        return self.keys * self.batches * prod(self.shape) * ELEM_BYTES

    def features(self, device: str = "cpu") -> dict[str, list[Any]]:
        """Return the entries, each in memory of its own."""
        batches = range(self.batches)
        return {str(k): [self._entry(device) for _ in batches] for k in range(self.keys)}

    def _entry(self, device: str) -> Any:
        if self.library == "torch":
            import torch

            return torch.rand(self.shape, device=device)
        import numpy as np

        return np.random.default_rng(0).random(self.shape, np.float32)


CASES = (
    Case("seed", 4, 4, (50, 256, 7, 7)),  # RoI features of four pyramid levels
    Case("many small", 64, 32, (8, 16)),
    Case("square", 8, 8, (4, 64)),
    Case("many keys", 256, 4, (16, 256)),
    Case("thousands", 3000, 10, (2, 16)),
    Case("tiny", 2, 1, (4, 64)),  # nothing to win here: what does goflat cost on top?
    Case("seed numpy", 4, 4, (50, 256, 7, 7), "numpy"),
    Case("30,000 arrays", 30_000, 1, (2, 16), "numpy"),  # pytorch#92142
)
