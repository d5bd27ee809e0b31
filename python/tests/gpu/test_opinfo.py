"""torch's own samples of torch.cat on a GPU; python/tests/opinfo has them on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numpy", reason="torch's samples need NumPy")

from gpu.support import DEVICE
from helpers import opinfo

# Promotion, refusals and dtypes without kernels of torch's are the fall-back's.
pytestmark = [
    pytest.mark.usefixtures("any_engine"),
    pytest.mark.filterwarnings("ignore:An output"),
]
NAME = str(DEVICE)


@pytest.mark.parametrize("dtype", opinfo.dtypes(), ids=str)
def test_samples(dtype: torch.dtype) -> None:
    cases = opinfo.samples(NAME, dtype)
    assert len(cases) >= 9
    for case in cases:
        opinfo.check(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    for case in opinfo.samples(NAME, dtype, requires_grad=True):
        opinfo.check_gradients(case)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    for case in opinfo.samples(NAME, dtype, requires_grad=True):
        opinfo.check_derivatives(case)


def test_errors() -> None:
    cases = opinfo.errors(NAME)
    assert len(cases) >= 10
    for case in cases:
        opinfo.check_error(case)
