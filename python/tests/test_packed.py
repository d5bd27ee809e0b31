"""packed=True: all outputs in one buffer, each a tensor of its own."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job, numpy_job, oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def shares(part: Any, whole: Any) -> bool:
    """Report whether two tensors have one storage."""
    return bool(part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_outputs_and_buffer(dim: int) -> None:
    features = job([[2, 1, 0], [0, 4, 3]], row_shape=(2, 3), dim=dim % 3)
    flat = goflat.flatten(features, dim=dim, packed=True)
    assert_all_bits(flat, oracle(features, dim))
    assert_bits(flat.buffer, torch.cat(list(flat), dim))
    assert all(shares(output, flat.buffer) for output in flat)


def test_not_packed_has_no_buffer() -> None:
    assert goflat.flatten(ragged()).buffer is None


def test_outputs_lie_in_the_buffer() -> None:
    flat = goflat.flatten(ragged(), packed=True)
    flat[1].fill_(7)
    assert flat.buffer is not None
    assert (flat.buffer[len(flat[0]) :] == 7).all()


def test_outputs_are_no_autograd_views() -> None:
    flat = goflat.flatten(ragged(), packed=True)
    assert not any(output._is_view() for output in flat)


def test_out_is_the_buffer() -> None:
    want = torch.cat(oracle(ragged()))
    out = torch.zeros_like(want)
    flat = goflat.flatten(ragged(), packed=True, out=out)
    assert flat.buffer is out
    assert_bits(out, want)
    assert_all_bits(flat, oracle(ragged()))
    assert all(shares(output, out) for output in flat)


def test_strided_out() -> None:
    whole = torch.zeros(14, 7)
    flat = goflat.flatten(ragged(), packed=True, out=whole[1:13, 1:7:2])
    assert_all_bits(flat, oracle(ragged()))
    assert_bits(whole[1:13, 1:7:2].contiguous(), torch.cat(oracle(ragged())))
    assert whole[0].abs().sum() + whole[13].abs().sum() + whole[:, ::2].abs().sum() == 0


def test_batch_of_nothing_but_legacy_entries() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))], "b": [torch.empty(0), tensor((1, 3))]}
    flat = goflat.flatten(features, packed=True)
    assert_all_bits(flat, oracle(features))
    assert_bits(flat.buffer, flat[1])


def test_job_of_nothing_but_legacy_entries() -> None:
    flat = goflat.flatten({"a": [torch.empty(0), torch.empty(0)]}, packed=True)
    assert_all_bits(flat, [torch.empty(0), torch.empty(0)])
    assert_bits(flat.buffer, torch.empty(0))


@pytest.mark.parametrize("features", [{}, {"a": []}, []], ids=repr)
def test_no_batches(features: Any) -> None:
    flat = goflat.flatten(features, packed=True)
    assert flat == []
    assert flat.buffer is None


def test_no_batches_with_out() -> None:
    out = torch.empty(0, 3)
    assert goflat.flatten({"a": []}, packed=True, out=out).buffer is out
    with pytest.raises(goflat.ShapeError, match=r"out of shape \(1, 3\)"):
        goflat.flatten({"a": []}, packed=True, out=torch.empty(1, 3))


def test_numpy() -> None:
    features = numpy_job(ragged())
    flat = goflat.flatten(features, packed=True)
    assert flat.buffer is not None
    assert_bits(flat.buffer, np.concatenate(list(flat)))
    assert all(np.shares_memory(output, flat.buffer) for output in flat)
    flat[0][0] = 7
    assert (flat.buffer[0] == 7).all()


def test_wrong_out() -> None:
    with pytest.raises(goflat.ShapeError, match=r"got out of shape \(3, 3\), want \(12, 3\)"):
        goflat.flatten(ragged(), packed=True, out=torch.empty(3, 3))
    with pytest.raises(goflat.DTypeError, match=r"got out of type list, want torch\.Tensor"):
        goflat.flatten(ragged(), packed=True, out=[torch.empty(12, 3)])  # type: ignore[list-item]


def test_shallow_copy_shares_the_arrays() -> None:
    flat = goflat.flatten(ragged(), packed=True)
    again = copy.copy(flat)
    assert [a is b for a, b in zip(flat, again, strict=True)] == [True, True]
    assert again.buffer is flat.buffer


def test_deep_copy_and_torch_save_keep_one_buffer() -> None:
    flat = goflat.flatten(ragged(), packed=True)
    file = io.BytesIO()
    torch.save(flat, file)
    file.seek(0)
    for again in copy.deepcopy(flat), torch.load(file, weights_only=False):
        assert_all_bits(again, list(flat))
        assert all(shares(output, again.buffer) for output in again)
        assert not shares(again[0], flat.buffer)
        assert again.layout == flat.layout
