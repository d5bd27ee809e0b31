"""Any job at all equals the loop over torch.cat."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import batch_major, oracle, tensor

pytestmark = pytest.mark.usefixtures("engine")
lasting_engine = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMPY_DTYPES = [torch.uint8, torch.bool, torch.int16, torch.float32, torch.float64]
DTYPES = [*NUMPY_DTYPES, torch.bfloat16, torch.float8_e4m3fn, torch.uint64, torch.complex128]


def contiguous(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return tensor(shape, dtype, seed)


def permuted(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return tensor(shape[::-1], dtype, seed).permute(*reversed(range(len(shape))))


def stepped(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    whole = tensor([2 * n for n in shape], dtype, seed)
    return whole[(slice(None, None, 2),) * len(shape)]


def cropped(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return tensor([n + 1 for n in shape], dtype, seed)[(slice(1, None),) * len(shape)]


def expanded(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return tensor([1] * len(shape), dtype, seed).expand(shape)


def legacy(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)


MAKERS = [contiguous, contiguous, contiguous, permuted, stepped, cropped, expanded, legacy]


class Job(NamedTuple):
    features: dict[str, list[torch.Tensor]]
    dim: int
    batch_major: bool

    def given(self, convert: Any = lambda t: t) -> Any:
        """Return the features in the form that was drawn."""
        features = {key: [convert(t) for t in ts] for key, ts in self.features.items()}
        return batch_major(features) if self.batch_major else features

    def outputs(self) -> list[torch.Tensor]:
        """Return what flatten has to give: torch.cat, made contiguous."""
        return [t.contiguous() for t in oracle(self.features, self.dim)]


@st.composite
def jobs(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Job:
    ndim = draw(st.integers(1, 4))
    dim = draw(st.integers(-ndim, ndim - 1))
    row_shape = draw(st.tuples(*[st.integers(0, 3)] * (ndim - 1)))
    dtype = draw(st.sampled_from(dtypes))
    keys, batches = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    seeds = iter(range(100))

    def entry() -> torch.Tensor:
        rows, axis = draw(st.integers(0, 4)), dim % ndim
        shape = (*row_shape[:axis], rows, *row_shape[axis:])
        return draw(st.sampled_from(MAKERS))(shape, dtype, next(seeds))

    features = {f"p{k}": [entry() for _ in range(batches)] for k in range(keys)}
    return Job(features, dim, draw(st.booleans()))


@lasting_engine
@given(jobs(DTYPES))
def test_flatten(job: Job) -> None:
    flat = goflat.flatten(job.given(), dim=job.dim)
    assert_all_bits(flat, job.outputs())
    assert flat.layout == goflat.Layout.of(job.given(), dim=job.dim)


@lasting_engine
@given(jobs(DTYPES))
def test_packed(job: Job) -> None:
    flat = goflat.flatten(job.given(), dim=job.dim, packed=True)
    assert_all_bits([t.contiguous() for t in flat], job.outputs())
    assert_bits(flat.buffer, torch.cat(job.outputs(), job.dim))


@lasting_engine
@given(jobs(DTYPES), st.sampled_from([contiguous, permuted, stepped, cropped]))
def test_out(job: Job, maker: Any) -> None:
    want = job.outputs()
    outs = [maker(tuple(t.shape), t.dtype, 99) for t in want]
    places = [(t.data_ptr(), t.stride()) for t in outs]
    flat = goflat.flatten(job.given(), dim=job.dim, out=outs)
    assert all(a is b for a, b in zip(flat, outs, strict=True))
    assert [(t.data_ptr(), t.stride()) for t in outs] == places
    assert_all_bits([t.contiguous() for t in outs], want)


@lasting_engine
@given(jobs(NUMPY_DTYPES), st.booleans())
def test_numpy(job: Job, packed: bool) -> None:
    flat = goflat.flatten(job.given(torch.Tensor.numpy), dim=job.dim, packed=packed)
    assert_all_bits(flat, [t.numpy() for t in job.outputs()])


@lasting_engine
@given(jobs(DTYPES))
def test_unflatten_is_the_way_back(job: Job) -> None:
    back = goflat.flatten(job.given(), dim=job.dim).unflatten()
    for key, entries in job.features.items():
        for got, entry in zip(back[key], entries, strict=True):
            if entry.shape != (0,):
                assert_bits(got.contiguous(), entry.contiguous())


@lasting_engine
@given(jobs(DTYPES), st.data())
def test_cat(job: Job, data: st.DataObject) -> None:
    batch = data.draw(st.integers(0, len(job.outputs()) - 1))
    parts = [entries[batch] for entries in job.features.values()]
    assert_bits(goflat.cat(parts, job.dim), job.outputs()[batch])


@lasting_engine
@given(jobs(DTYPES), st.data())
def test_a_wrong_entry_is_named(job: Job, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(list(job.features)))
    batch = data.draw(st.integers(0, len(job.features[key]) - 1))
    entry = job.features[key][batch]
    others = [t for ts in job.features.values() for t in ts if t is not entry and t.shape != (0,)]
    if len(others) < 2:  # with one other nobody can tell which of the two is wrong
        return
    job.features[key][batch] = torch.zeros(3, 3, 3, 3, 3, dtype=entry.dtype)
    with pytest.raises(goflat.ShapeError) as caught:
        goflat.flatten(job.given(), dim=job.dim)
    first = next(t for ts in job.features.values() for t in ts if t.shape != (0,))
    if first is not job.features[key][batch]:
        assert (caught.value.key, caught.value.batch) == (key, batch)
