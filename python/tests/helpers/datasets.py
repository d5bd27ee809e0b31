"""A data set whose items are made by goflat, in whatever process asks."""

from __future__ import annotations

import gc

import torch

import goflat


class Flattened(torch.utils.data.Dataset[torch.Tensor]):
    """Item i is one flattened batch."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        gc.collect()
        features = {"a": [torch.full((2, 3), float(i))], "b": [torch.arange(3.0).reshape(1, 3)]}
        return goflat.flatten(features)[0]


def total(n: int) -> float:
    """Return 2 n + 1, by way of goflat."""
    return float(goflat.cat([torch.full((n,), 2.0), torch.ones(1)]).sum())


def check(loader: torch.utils.data.DataLoader[torch.Tensor]) -> None:
    """Assert that `loader` gives the items of `Flattened`."""
    for i, batch in enumerate(loader):
        assert (batch[:2] == i).all()
        assert torch.equal(batch[2], torch.arange(3.0))
    assert i == 7
