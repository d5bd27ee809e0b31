"""torch's own samples of torch.cat, put to goflat."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

import goflat
from helpers.compare import assert_bits
from helpers.jobs import DTYPES

ODD_BYTES = 7  # for dtypes that torch makes no samples of: bytes that mean something to any of them


class Case(NamedTuple):
    """Arguments of one call of torch.cat."""

    tensors: Any
    dim: int
    out: Any = None

    def options(self) -> dict[str, Any]:
        return {} if self.out is None else {"out": self.out}


@cache
def operator() -> Any:
    """Return the OpInfo of torch.cat.

    Its module imports expecttest, which torch does not depend on and this does not use.
    """
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the many modules that these import
        from torch.testing._internal.common_methods_invocations import op_db

    return next(op for op in op_db if op.name == "cat")


def _case(sample: Any) -> Case:
    dim = sample.args[0] if sample.args else sample.kwargs.get("dim", 0)
    return Case(sample.input, dim, sample.kwargs.get("out"))


def samples(device: str, dtype: torch.dtype, requires_grad: bool = False) -> list[Case]:
    """Return the samples, and the reference inputs of its Python implementation, in `dtype`."""
    op = operator()
    torch.manual_seed(0)
    if dtype in op.supported_dtypes(torch.device(device).type) and dtype in _MADE:
        cases = map(_case, op.reference_inputs(device, dtype, requires_grad=requires_grad))
        return [case for case in cases if not requires_grad or _one_dtype(case)]
    alike = [case for case in samples(device, torch.uint8) if _one_dtype(case)]
    return [Case([_like(t, dtype) for t in case.tensors], case.dim) for case in alike]


_MADE = {  # what torch.testing.make_tensor makes in every torch since 2.6
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
}


def _one_dtype(case: Case) -> bool:
    return len({t.dtype for t in case.tensors}) == 1


def _like(model: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of `dtype` with the strides of `model` and bytes of all kinds."""
    made = torch.empty_strided(model.shape, model.stride(), dtype=dtype, device=model.device)
    raw = torch.empty(0, dtype=torch.uint8, device=model.device)
    raw.set_(made.untyped_storage())
    raw.copy_(torch.arange(raw.numel(), device=raw.device) * ODD_BYTES % 251)
    return made


def check(case: Case) -> None:
    """Compare goflat.cat and flatten with torch.cat, bit for bit."""
    if not _one_dtype(case):
        check_promotion(case)
        return
    want = joined(case.tensors, case.dim)
    _same(goflat.cat(case.tensors, case.dim), want)
    _same(goflat.cat(tuple(case.tensors), case.dim, out=torch.empty_like(want)), want)
    features = {str(k): [t, t] for k, t in enumerate(case.tensors)}
    for packed in (False, True):
        for flat in goflat.flatten(features, dim=case.dim, packed=packed):
            _same(flat, want)
    (flat,) = goflat.flatten([{k: t for k, (t, _) in features.items()}], dim=case.dim)
    _same(flat, want)


def joined(tensors: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Return what torch.cat gives; of dtypes that it may have no kernel for, of their bytes."""
    try:
        return torch.cat(tensors, dim)
    except (RuntimeError, NotImplementedError) as error:
        if tensors[0].element_size() != 1 or "not implemented" not in str(error):
            raise
        return torch.cat([t.view(torch.uint8) for t in tensors], dim).view(tensors[0].dtype)


def check_promotion(case: Case) -> None:
    """Where torch.cat promotes, goflat wants to be told to."""
    with pytest.raises(goflat.DTypeError):
        goflat.cat(case.tensors, case.dim)
    want = torch.cat(case.tensors, case.dim)
    _same(goflat.cat(case.tensors, case.dim, dtype=want.dtype), want)


def check_gradients(case: Case) -> None:
    """Compare the gradients of entries with those of torch.cat, bit for bit."""
    want = torch.cat(case.tensors, case.dim)
    grad = torch.randn_like(want)
    wants = torch.autograd.grad(want, case.tensors, grad, materialize_grads=True)
    features = {str(k): [t] for k, t in enumerate(case.tensors)}
    for got in (
        goflat.cat(case.tensors, case.dim),
        goflat.flatten(features, dim=case.dim)[0],
        goflat.flatten(features, dim=case.dim, packed=True).buffer,
    ):
        grads = torch.autograd.grad(got, case.tensors, grad, materialize_grads=True)
        for pair in zip(grads, wants, strict=True):
            _same(*pair)


def check_derivatives(case: Case) -> None:
    """Let torch's gradcheck and gradgradcheck judge."""

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        return goflat.flatten({str(k): [t] for k, t in enumerate(tensors)}, dim=case.dim)[0]

    assert torch.autograd.gradcheck(join, tuple(case.tensors))
    assert torch.autograd.gradgradcheck(join, tuple(case.tensors))


def errors(device: str) -> list[Case]:
    """Return calls that torch.cat refuses."""
    return [_case(error.sample_input) for error in operator().error_inputs(device)]


def check_error(case: Case) -> None:
    """Where torch.cat raises, goflat does, and changes nothing."""
    held = [t for t in [*case.tensors, case.out] if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in held]
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        torch.cat(case.tensors, case.dim, **case.options())
    for t, was in zip(held, before, strict=True):
        if t.shape == was.shape and 0 not in t.stride():  # torch.cat has resized some
            t.copy_(was)
    with pytest.raises(goflat.Error):
        goflat.cat(case.tensors, case.dim, **case.options())
    if not isinstance(case.tensors, torch.Tensor):
        features = {str(k): [t] for k, t in enumerate(case.tensors)}
        outs = {} if case.out is None else {"out": [case.out]}
        if features:
            with pytest.raises(goflat.Error):
                goflat.flatten(features, dim=case.dim, **outs)
    for t, was in zip(held, before, strict=True):
        if t.shape == was.shape:  # samples hold what memory had, NaNs among it
            torch.testing.assert_close(t, was, rtol=0, atol=0, equal_nan=True)


def _same(got: Any, want: Any) -> None:
    assert (got.device, got.dtype) == (want.device, want.dtype)
    assert_bits(_integers(got), _integers(want))


def _integers(t: torch.Tensor) -> torch.Tensor:
    """Return the elements of `t` as integers of their size, which torch can copy whatever it is."""
    plain = t.detach().resolve_conj().resolve_neg()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.view(integers.get(t.element_size(), t.dtype)).cpu()


def dtypes() -> list[torch.dtype]:
    """Return every dtype of this torch that torch.cat joins."""
    return DTYPES
