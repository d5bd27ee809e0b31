"""torch's own samples of torch.cat on the CPU; in gpu/test_opinfo.py they are on a GPU."""

from __future__ import annotations

import pytest
import torch

from helpers import opinfo

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support", "ignore:An output"),
]


@pytest.mark.parametrize("dtype", opinfo.dtypes(), ids=str)
def test_samples(dtype: torch.dtype) -> None:
    cases = opinfo.samples("cpu", dtype)
    assert len(cases) >= 9
    for case in cases:
        opinfo.check(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    for case in opinfo.samples("cpu", dtype, requires_grad=True):
        opinfo.check_gradients(case)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    for case in opinfo.samples("cpu", dtype, requires_grad=True):
        opinfo.check_derivatives(case)


def test_errors() -> None:
    cases = opinfo.errors("cpu")
    assert len(cases) >= 10
    for case in cases:
        opinfo.check_error(case)
