"""The samples of torch's own tests of torch.cat, on a GPU: bits, gradients and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gpu.support import DEVICE, DTYPES
from helpers.samples import ERRORS, NO_KERNEL, SAMPLES, WAYS, places

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.usefixtures("any_engine")


def same(got: Tensor, want: Tensor) -> bool:
    """Compare bytes."""
    got, want = got.detach().contiguous(), want.detach().contiguous()
    if (got.shape, got.dtype, got.device) != (want.shape, want.dtype, want.device):
        return False
    return got.view(-1).view(torch.uint8).equal(want.view(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_and_gradients(dtype: torch.dtype) -> None:
    for name, case in SAMPLES.items():
        try:
            entries = case.entries(dtype, DEVICE)
            if dtype.is_floating_point or dtype.is_complex:
                entries = [t.requires_grad_() for t in entries]
            want = torch.cat(entries, case.dim)
            incoming = torch.empty(want.shape, dtype=dtype, device=DEVICE)
            theirs = places(want, entries, incoming)
        except (RuntimeError, NotImplementedError) as error:  # no kernel of torch
            assert any(text in str(error) for text in NO_KERNEL), name
            continue
        for way, join in WAYS.items():
            got = join(entries, case.dim)
            assert same(got, want), (name, way)
            if got.requires_grad:
                assert places(got, entries, incoming) == theirs, (name, way)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, error = ERRORS[name]
    with torch.device(DEVICE), pytest.raises(error):
        call()
