"""The samples of torch's own tests of torch.cat: bits, gradients and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from helpers.compare import assert_bits
from helpers.jobs import DTYPES
from helpers.samples import ERRORS, NO_KERNEL, SAMPLES, WAYS, places

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_and_gradients(dtype: torch.dtype) -> None:
    """Gradients lie where those of torch.cat lie."""
    for name, case in SAMPLES.items():
        try:
            entries = case.entries(dtype, "cpu")
            if dtype.is_floating_point or dtype.is_complex:
                entries = [t.requires_grad_() for t in entries]
            want = torch.cat(entries, case.dim)
            incoming = torch.empty(want.shape, dtype=dtype)
            theirs = places(want, entries, incoming)
        except (RuntimeError, NotImplementedError) as error:  # no kernel of torch
            assert any(text in str(error) for text in NO_KERNEL), name
            continue
        for way, join in WAYS.items():
            got = join(entries, case.dim)
            assert_bits(got.detach().contiguous(), want.detach().contiguous())
            if got.requires_grad:
                assert places(got, entries, incoming) == theirs, (name, way)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck(dtype: torch.dtype, sample: str) -> None:
    case = SAMPLES[sample]
    entries = [t.clone().requires_grad_() for t in case.entries(dtype, "cpu")]
    fast = all(t.numel() for t in entries)  # which torch gets wrong for entries without elements
    for way in ("flatten", "packed", "cat"):

        def function(*parts: Tensor, way: str = way) -> Tensor:
            return WAYS[way](list(parts), case.dim)

        assert torch.autograd.gradcheck(function, entries, check_forward_ad=True, fast_mode=fast)
        assert torch.autograd.gradgradcheck(function, entries, fast_mode=fast)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, error = ERRORS[name]
    with pytest.raises(error):
        call()
