"""What results of consuming calls can do, and how long they keep memory."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import TYPE_CHECKING

import torch

import goflat
from goflat import _native
from helpers.compare import assert_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    answer,
    consume,
    parts,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    Features = dict[str, list[Tensor]]


def made() -> tuple[Tensor, Tensor]:
    """Return an output that lies in its entries' memory, and what it must be."""
    whole = torch.arange(36.0).reshape(12, 3)
    features = {"0": [whole[7:10], whole[11:]], "1": [whole[:2], whole[2:6]]}
    del whole
    want = answer(features)
    return goflat.flatten_(features, max_growth=0 if _native.available() else None)[1], want[1]


def test_results_survive_everything(tmp_path: Path) -> None:
    out, want = made()
    assert_bits(out.clone(), want)
    assert_bits(copy.deepcopy(out), want)
    assert_bits(torch.empty_like(out).copy_(out), want)
    assert_bits(pickle.loads(pickle.dumps(out)), want)
    torch.save(out, tmp_path / "out.pt")
    assert_bits(torch.load(tmp_path / "out.pt"), want)
    assert_bits(torch.from_dlpack(out), want)
    assert_bits(out.numpy(), want.numpy())
    assert_bits(out.cpu().contiguous(), want)
    assert_bits(out[1:].reshape(-1), want[1:].reshape(-1))
    assert_bits(out.view(torch.int32), want.view(torch.int32))
    assert (out.is_contiguous(), out.is_leaf, out.requires_grad, out._base) == (
        True,
        True,
        False,
        None,
    )


def test_results_are_ordinary_tensors() -> None:
    out, want = made()
    assert_bits(out.mul_(2).add_(1), want * 2 + 1)
    out.resize_(7, 3)
    assert_bits(out[:5], want * 2 + 1)
    out, want = made()
    out.requires_grad_()
    (out * want).sum().backward()
    assert_bits(out.grad, want)
    out, want = made()
    linear = torch.nn.Linear(3, 2)
    linear(out).sum().backward()
    assert_bits(linear.weight.grad, want.sum(0).expand(2, 3).contiguous())
    out.share_memory_()
    assert_bits(out, want)


def test_results_do_not_share_autograd_state() -> None:
    flat = consume(parts([[3, 1], [2, 4]]))
    flat[0].requires_grad_()
    assert not flat[1].requires_grad
    flat[1].add_(1)
    (flat[0] ** 2).sum().backward()
    version = flat[1]._version
    flat[0].detach().add_(1)
    assert flat[1]._version == version, "a change of one output counts as one of the other"


def test_results_outlive_entries_flat_and_containers() -> None:
    features = parts([[3, 1], [2, 4]], order=1)
    want = answer(features)
    flat = goflat.flatten_(features, max_growth=LOTS)
    last = flat[1]
    del flat, features
    gc.collect()
    junk = [torch.full((10, 3), 7.0) for _ in range(200)]
    assert_bits(last, want[1])
    del junk


def test_flat_knows_layout_and_plan() -> None:
    features = parts(ROWS)
    layout = goflat.Layout.of(features)
    planned = goflat.plan(features, inplace=True)
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert flat.layout == layout
    assert flat.plan.to_dict() == planned.to_dict()
    assert str(flat.plan) == str(planned)
    assert flat.offsets(0).tolist() == [0, 2, 2, 5]
    assert flat.unflatten()["0"][1].shape == (1, 3)
    assert copy.copy(flat).layout == layout


def test_memory_goes_back_with_the_outputs() -> None:
    features = parts(ROWS)
    storage = weakref.ref(next(iter(features.values()))[0].untyped_storage())
    entry = weakref.ref(features["0"][0])
    flat = consume(features)
    gc.collect()
    assert entry() is None
    del flat
    gc.collect()
    assert storage() is None
