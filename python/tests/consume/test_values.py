"""Consuming calls give what torch.cat gives, for jobs of all kinds."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    answer,
    apart,
    consume,
    parts,
)
from helpers.jobs import DTYPES, batch_major, oracle

if TYPE_CHECKING:
    from torch import Tensor

    Features = dict[str, list[Tensor]]

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:BComplex32")


def test_the_answer_is_that_of_torch_cat() -> None:
    assert_all_bits(answer(parts(ROWS)), oracle(parts(ROWS)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    for features in (parts(ROWS, (3,), dtype), parts(ROWS, (2, 2), dtype, order=1, gap=1)):
        consume(features)
    consume(batch_major(parts(ROWS, (3,), dtype)))


JOBS = {
    "one entry": ((3,),),
    "one key": ((3, 1, 2),),
    "one batch": ((3,), (1,), (2,)),
    "many keys": ((2, 1),) * 40,
    "many batches": ((1, 2, 0) * 20, (2, 1, 1) * 20),
    "no rows in a batch": ((0, 2), (0, 3)),
    "no rows": ((0, 0), (0, 0)),
    "rows of a first entry only": ((5, 0), (0, 0)),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("form", ["key-major", "batch-major"])
def test_jobs(name: str, form: str, engine: str) -> None:
    for features in (parts(JOBS[name]), apart(JOBS[name]), parts(JOBS[name], order=2, gap=2)):
        job: Any = features if form == "key-major" else batch_major(features)
        features = {}
        consume(job)


@pytest.mark.parametrize("row_shape", [(), (1,), (7,), (0,), (2, 0), (3, 5, 2)])
def test_row_shapes(row_shape: tuple[int, ...], engine: str) -> None:
    consume(parts(ROWS, row_shape))
    consume(apart(ROWS, row_shape))


def test_nothing_to_do(engine: str) -> None:
    for empty in ({}, {"k": []}, [], OrderedDict(a=[], b=[])):
        flat = goflat.flatten_(empty, max_growth=0)
        assert (list(flat), len(empty), flat.plan.growth) == ([], 0, 0)
    with pytest.raises(goflat.ShapeError):
        goflat.flatten_([{}, {}])
    with pytest.raises(goflat.ShapeError, match="no tensors"):
        goflat.cat_([])


def test_entries_that_cat_skips(engine: str) -> None:
    legacy, rows = torch.empty(0), [torch.ones(2, 3), torch.zeros(1, 3)]
    consume({"a": [legacy.clone(), rows.pop()], "b": [rows.pop(), legacy.clone()]})
    consume({"a": [legacy.clone()], "b": [legacy.clone()]})
    consume({"a": [torch.ones(0, 3), torch.ones(2, 3)], "b": [legacy.clone(), legacy.clone()]})


def test_errors_are_those_of_flatten_and_change_nothing(engine: str) -> None:
    for rows, error in (
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 4)]}, goflat.ShapeError),
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 3).long()]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [np.ones((2, 3))]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [None]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 3, device="meta")]}, goflat.DeviceError),
        ({"a": [torch.ones(2, 3)], "b": []}, goflat.ShapeError),
        ({"a": torch.ones(2, 3)}, goflat.DTypeError),
        ({"a": [torch.tensor(1.0)]}, goflat.ShapeError),
    ):
        features: dict[str, Any] = dict(rows)
        before = {key: [id(x) for x in entries] for key, entries in rows.items()}
        with pytest.raises(error) as caught:
            goflat.flatten_(features, max_growth=LOTS)
        with pytest.raises(error) as of_flatten:
            goflat.flatten(features)
        assert str(caught.value) == str(of_flatten.value)
        if type(features["a"]) is list:
            assert {key: [id(x) for x in entries] for key, entries in features.items()} == before
