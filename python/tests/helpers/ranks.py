"""Two processes that train together, over gloo on the CPU."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Join = Callable[[dict[str, list[Tensor]]], Any]

RANKS = 2


def on_two_ranks(work: Callable[[int], None]) -> None:
    """Call ``work(rank)`` in two forked processes of one group; assert that both end well.

    To be called before goflat is imported, so that each loads it for itself.
    """
    assert "goflat" not in sys.modules
    with tempfile.TemporaryDirectory() as folder:
        children = [
            os.fork() or _run(work, rank, f"file://{folder}/group") for rank in range(RANKS)
        ]
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * RANKS


def _run(work: Callable[[int], None], rank: int, group: str) -> int:
    status = 1
    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=RANKS)
        work(rank)
        torch.distributed.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


class Head(nn.Module):
    """Features of two levels by image, joined by image, and a score for each row."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self._join = join
        self.levels = nn.ModuleDict({"p2": nn.Linear(4, 8), "p3": nn.Linear(4, 8)})
        self.score = nn.Linear(8, 1)

    def forward(self, images: list[Tensor]) -> Tensor:
        features = {
            key: [level(image[k::2]) for image in images]
            for k, (key, level) in enumerate(self.levels.items())
        }
        joined = self._join(features)
        del features
        return torch.stack([self.score(rows).sum() for rows in joined]).pow(2).sum()


def gradients(join: Join, rank: int) -> list[Tensor]:
    """Return the gradients after three steps on data of `rank`, averaged over the ranks."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Head(join))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model([torch.randn(rows, 4) for rows in (3 + rank, 5, 2 + step)]).backward()
        optimizer.step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]
