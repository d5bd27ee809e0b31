"""Training on a GPU: what backward needs is copied, the rest is written over, peaks are lower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import DEVICE, DRY, growth
from helpers.producers import FREE, SAVING, loss, parameter, split
from helpers.training import Head, Sizes, by_torch, inputs, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

OPERATIONS = {**FREE, **SAVING}
LOTS = 1 << 40
SIZES = Sizes(images=4, rois=16 if DRY else 128, channels=8 if DRY else 256, pixels=8)
# Which of its kernels torch takes depends on the device, and with it what backward needs.
UNSURE = {"attention"}


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def by_flatten_(features: Any) -> goflat.Flat[Tensor]:
    return goflat.flatten_(features, max_growth=LOTS)


def oracle(features: Any) -> list[Tensor]:
    return [torch.cat(column) for column in zip(*features.values(), strict=True)]


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_and_growth_by_operation(name: str) -> None:
    def run(join: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        x = parameter()
        made = [OPERATIONS[name](x)]
        flat = join(split(made))
        loss(flat).backward()
        return x.grad, flat

    got, flat = run(by_flatten_)
    torch.testing.assert_close(got, run(oracle)[0])
    if name not in UNSURE:
        assert (flat.plan.growth == 0) == (name in FREE), flat.plan


def step_growth(join: Callable[[Any], Any]) -> tuple[list[Tensor], int]:
    model, data = Head(SIZES), inputs(SIZES)
    step(model, data, join)
    model.zero_grad(set_to_none=True)
    return growth(lambda: step(model, data, join))


def test_step_peak_is_lower_than_with_torch_cat(cuda: None) -> None:
    want, plain = step_growth(by_torch)
    got, adopted = step_growth(by_flatten_)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    print(
        f"step: torch.cat {plain / SIZES.features:.2f} S, flatten_ {adopted / SIZES.features:.2f} S"
    )
    assert plain > SIZES.features * 2
    assert adopted < SIZES.features * 1.7


def by_roi_align(count: int, join: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a step with torchvision's RoI align: levels of an FPN, RoIs of several images."""
    align = pytest.importorskip("torchvision.ops").roi_align
    torch.manual_seed(0)
    levels = torch.nn.ModuleList(torch.nn.Conv2d(3, 256, 3, padding=1) for _ in range(4))
    top = torch.nn.Linear(256 * 7 * 7, 64)
    images = torch.rand(4, 3, 64, 64)
    boxes = [torch.rand(count, 4) * 24 for _ in range(4)]
    boxes = [torch.cat([b[:, :2], b[:, :2] + b[:, 2:] + 8], 1) for b in boxes]

    def run() -> Any:
        top.zero_grad(set_to_none=True)
        levels.zero_grad(set_to_none=True)
        features = {
            str(k): list(align(level(images), boxes, (7, 7)).split(count))
            for k, level in enumerate(levels)
        }
        flat = join(features)
        features.clear()
        plan = getattr(flat, "plan", None)
        total = torch.stack([top(rows.flatten(1)).square().mean() for rows in flat]).sum()
        del flat  # backward lets go of each batch as soon as it can
        total.backward()
        return [p.grad for p in (*levels.parameters(), *top.parameters())], plan

    return run


def test_roi_align(cuda: None) -> None:
    count = 128
    features = 16 * count * 256 * 49 * 4
    runs = {name: by_roi_align(count, join) for name, join in JOINS.items()}
    results = {}
    for name, run in runs.items():
        run()
        (grads, plan), rose = growth(run)
        results[name] = grads, rose, plan
        print(f"roi_align step, {name}: {rose / features:.2f} S")
    plan = results["flatten_"][2]
    assert plan is not None
    assert (plan.strategy, plan.growth) == ("inplace", 0)
    for a, b in zip(results["flatten_"][0], results["torch.cat"][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert results["torch.cat"][1] - results["flatten_"][1] > features * 0.3


JOINS: dict[str, Callable[[Any], Any]] = {"torch.cat": by_torch, "flatten_": by_flatten_}


def test_collected_and_ragged(cuda: None) -> None:
    """Convolutions' outputs of any number of rows, made inside collect() with autograd on."""
    weight = torch.rand(64, 32, 3, requires_grad=True)
    rows = {"a": (50, 0, 700), "b": (3, 1000, 1), "c": (256, 31, 90)}

    def run(join: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        with goflat.collect():
            features = {
                k: [torch.nn.functional.conv1d(torch.rand(n, 32, 16), weight) for n in counts]
                for k, counts in rows.items()
            }
            flat = join(features)
        (grad,) = torch.autograd.grad(loss(flat), weight)
        return grad, flat

    got, flat = run(by_flatten_)
    assert flat.plan.growth == 0
    torch.testing.assert_close(got, run(oracle)[0], rtol=1e-3, atol=1e-3)


def test_backward_of_side_streams(cuda: None) -> None:
    side = torch.cuda.Stream()
    x = parameter()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        made = [x * 2]
        flat = by_flatten_(split(made))
        total = loss(flat)
    del flat
    torch.cuda.current_stream().wait_stream(side)
    total.backward()
    made = [parameter() * 2]
    want = parameter()
    loss(oracle(split([want * 2]))).backward()
    torch.testing.assert_close(x.grad, want.grad)
