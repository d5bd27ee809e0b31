"""RoI features of a detector, joined by image: with torch.cat, and in place.

A feature pyramid gives one map a level. Each box belongs to one level, so RoI align makes one
tensor for each level and image, and the box head wants one for each image. A training step does
that here with ``torch.cat`` and with ``goflat.flatten_``; outputs and gradients are compared. Then
the same for a loop that keeps results and joins them at the end. Printed are time and, on a GPU,
the memory at the worst moment.

    python examples/python/roi_features.py        # small, on the CPU
    python examples/python/roi_features.py --device cuda --images 8 --boxes 1000 --size 800

Needs torchvision. Weights are random, nothing is downloaded.

torchvision's own ``MultiScaleRoIAlign`` gains nothing from goflat: it allocates the result first
and writes each level into it by index, so it has no ``torch.cat`` to replace. Models that keep
levels apart, because heads or losses differ, or that join what several stages found, do have one.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.ops import roi_align

import goflat

Features = dict[str, list[Tensor]]  # features[level][image]
Join = Callable[[Features], list[Tensor]]

STRIDES = {"p2": 4, "p3": 8, "p4": 16, "p5": 32}  # pixels of the image for one of the map
ROI = 7  # extent of a RoI's features


class Detector(nn.Module):
    """Backbone, feature pyramid, and a head that reads all RoI features of an image at once."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
        self.head = TwoMLPHead(256 * ROI * ROI, 1024)

    def features(self, images: Tensor, boxes: list[Tensor]) -> Features:
        """Return RoI features by level and image, each of shape (boxes there, 256, 7, 7)."""
        maps = self.backbone(images)
        belongs = [levels(each, images.shape[-1]) for each in boxes]
        found: Features = {}
        for n, (level, stride) in enumerate(STRIDES.items()):
            found[level] = [
                roi_align(maps[str(n)][i : i + 1], [boxes[i][belongs[i] == n]], ROI, 1 / stride)
                for i in range(len(boxes))
            ]
        return found

    def forward(self, images: Tensor, boxes: list[Tensor], join: Join) -> list[Tensor]:
        """Return what the head makes of each image's boxes."""
        with collected(images.device):
            features = self.features(images, boxes)
        return [self.head(rows) for rows in join(features)]


def levels(boxes: Tensor, size: int) -> Tensor:
    """Return the level of each box, 0 to 3, by the rule of the FPN paper (1612.03144).

    224 pixels are level p4 there, for images of 800; smaller images have smaller boxes.
    """
    sides = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    return (2 + (sides / (224 * size / 800) + 1e-6).log2()).floor().clamp(0, len(STRIDES) - 1)


def collected(device: torch.device) -> Any:
    """Let what a GPU allocates lie side by side, so that joining it in place grows by 0 bytes."""
    return goflat.collect(device) if device.type == "cuda" else contextlib.nullcontext()


def by_cat(features: Features) -> list[Tensor]:
    """Join the levels of each image as it is usually done."""
    return [torch.cat(column) for column in zip(*features.values(), strict=True)]


def by_goflat(features: Features) -> list[Tensor]:
    """Join them in the memory that they have, which empties `features`."""
    return goflat.flatten_(features)


# ---- what is measured ----


class Case(NamedTuple):
    """A model and what it is shown."""

    model: Detector
    images: Tensor
    boxes: list[Tensor]


class Measured(NamedTuple):
    """One way to do something: what came out, how long it took, and what it needed."""

    results: list[Tensor]
    seconds: float
    peak: int  # bytes of torch's allocator above the level before, 0 on a CPU


def step(case: Case, join: Join) -> list[Tensor]:
    """Run forward and backward, and return the outputs and all gradients."""
    case.model.zero_grad(set_to_none=True)
    outputs = case.model(case.images, case.boxes, join)
    torch.stack([each.square().mean() for each in outputs]).sum().backward()
    grads = [p.grad for p in case.model.parameters() if p.grad is not None]
    return [each.detach() for each in outputs] + grads


@torch.no_grad()
def keep_and_cat(case: Case, batches: int) -> list[Tensor]:
    """Keep the RoI features of each batch, and join all at the end."""
    kept = []
    for _ in range(batches):
        kept += by_cat(case.model.features(case.images, case.boxes))
    return [torch.cat(kept)]


@torch.no_grad()
def keep_and_cat_in_place(case: Case, batches: int) -> list[Tensor]:
    """Do the same in the memory of what was kept."""
    kept = []
    for _ in range(batches):
        features = case.model.features(case.images, case.boxes)
        with collected(case.images.device):
            kept += by_cat(features)
    return [goflat.cat_(kept)]


def measure(work: Callable[[], list[Tensor]], device: torch.device) -> Measured:
    """Run `work` once to warm up and once for the numbers."""
    work()
    if device.type != "cuda":
        start = time.perf_counter()
        return Measured(work(), time.perf_counter() - start, 0)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    level, start = torch.cuda.memory_allocated(device), time.perf_counter()
    results = work()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    return Measured(results, seconds, torch.cuda.max_memory_allocated(device) - level)


def make_case(device: torch.device, images: int, boxes: int, size: int) -> Case:
    """Return a model with random weights, random images, and boxes of all sizes."""
    torch.manual_seed(0)
    corners = [torch.rand(boxes, 2) * size * 0.8 for _ in range(images)]
    sides = [(torch.rand(boxes, 1) * 6 - 6).exp2() * size for _ in range(images)]
    placed = [
        torch.cat([corner, (corner + side).clamp(max=size)], 1).to(device)
        for corner, side in zip(corners, sides, strict=True)
    ]
    model = Detector().to(device)
    model.eval()  # no statistics of batch norm: both ways see the same network
    return Case(model, torch.rand(images, 3, size, size, device=device), placed)


def compare(name: str, plain: Measured, in_place: Measured, exact: bool) -> None:
    """Print both ways side by side, after comparing what came out."""
    for got, want in zip(in_place.results, plain.results, strict=True):
        # RoI align's backward adds up atomically on a GPU, in another order each time
        torch.testing.assert_close(got, want, **({"rtol": 0, "atol": 0} if exact else {}))
    print(f"\n{name}: results {'bit-equal' if exact else 'equal up to rounding'}")
    for way, measured in (("torch.cat", plain), ("goflat", in_place)):
        peak = f"{measured.peak / 2**20:9.1f} MiB" if measured.peak else "  not measured on a CPU"
        print(f"  {way:9}  time {measured.seconds * 1e3:8.1f} ms   peak above the start {peak}")


@torch.no_grad()
def show(case: Case) -> None:
    """Print what there is to join, and what goflat says of it."""
    with collected(case.images.device):
        features = case.model.features(case.images, case.boxes)
    for level, rows in goflat.Layout.of(features).rows.items():
        print(f"{level}: {', '.join(map(str, rows))} boxes")
    print(goflat.plan(features, inplace=True))


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--boxes", type=int, default=40, help="boxes an image")
    parser.add_argument("--size", type=int, default=96, help="pixels of an image's side")
    parser.add_argument("--batches", type=int, default=2, help="of the loop that keeps results")
    args = parser.parse_args()
    device = torch.device(args.device)
    case = make_case(device, args.images, args.boxes, args.size)
    exact = device.type == "cpu"
    if exact:  # tensors made one by one on a CPU do not adjoin: flatten_ says once that it grows
        warnings.simplefilter("ignore", goflat.GrowthWarning)

    show(case)
    ways = [measure(lambda join=join: step(case, join), device) for join in (by_cat, by_goflat)]
    compare("training step", *ways, exact=exact)
    loops = (keep_and_cat, keep_and_cat_in_place)
    ways = [measure(lambda loop=loop: loop(case, args.batches), device) for loop in loops]
    compare(f"{args.batches} batches kept, then joined", *ways, exact=True)


if __name__ == "__main__":
    main()
