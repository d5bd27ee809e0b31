"""A detector's head in small: convolutions, RoI features by level and image, a layer per image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Join = Callable[[dict[str, list[Tensor]]], Any]


class Sizes(NamedTuple):
    """Of a model and its input; one level for each image, so that outputs fit into levels."""

    images: int = 4
    rois: int = 16  # per level and image
    channels: int = 8
    pixels: int = 8
    classes: int = 4

    @property
    def features(self) -> int:
        """Bytes of all RoI features."""
        return self.images**2 * self.rois * self.channels * 7 * 7 * 4


class Head(torch.nn.Module):
    """Levels of convolutions, RoI features of each, joined by image, a linear layer on top.

    RoI features are sampled at places between pixels; its backward needs the input and the places.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sizes, channels = sizes, sizes.channels
        convolution = {"kernel_size": 3, "padding": 1}
        self.levels = torch.nn.ModuleList(
            torch.nn.Conv2d(3, channels, **convolution) for _ in range(sizes.images)
        )
        self.top = torch.nn.Linear(channels * 7 * 7, sizes.classes)

    def forward(self, images: Tensor, places: Tensor, join: Join) -> list[Tensor]:
        """Return scores by image. `join` turns a dict of lists into a list, and may empty it."""
        features = {str(k): self.pool(level(images), places) for k, level in enumerate(self.levels)}
        flat = join(features)
        features.clear()
        return [self.top(rows.flatten(1)) for rows in flat]

    def pool(self, level: Tensor, places: Tensor) -> list[Tensor]:
        """Return the features of each image's RoIs, as parts of one tensor."""
        count, channels, rois = len(level), self.sizes.channels, self.sizes.rois
        sampled = F.grid_sample(level, places, align_corners=False)
        by_roi = sampled.view(count, channels, rois, 7, 7).transpose(1, 2)
        return list(by_roi.reshape(-1, channels, 7, 7).split(rois))


def inputs(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return images and places of RoIs in them."""
    torch.manual_seed(1)
    images = torch.rand(sizes.images, 3, sizes.pixels, sizes.pixels)
    return images, torch.rand(sizes.images, sizes.rois * 7, 7, 2) * 2 - 1


def by_torch(features: dict[str, list[Tensor]]) -> list[Tensor]:
    """Join with torch.cat."""
    return [torch.cat(column) for column in zip(*features.values(), strict=True)]


def step(model: Head, data: tuple[Tensor, Tensor], join: Join) -> list[Tensor]:
    """Do a forward and a backward pass; return the gradients of all parameters."""
    model.zero_grad(set_to_none=True)
    scores = model(*data, join)
    torch.stack([score.square().sum() for score in scores]).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]
