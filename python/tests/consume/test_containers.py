"""Which containers are emptied; cat_; NumPy and other libraries."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import (
    LOTS,
    ROWS,
    answer,
    apart,
    consume,
    parts,
)
from helpers.foreign import Standard
from helpers.jobs import batch_major, numpy_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]


def test_containers_of_all_kinds_are_emptied(engine: str) -> None:
    makers: list[Callable[[Features], Any]] = [
        dict,
        OrderedDict,
        lambda f: defaultdict(list, f),
        batch_major,
        lambda f: [OrderedDict(batch) for batch in batch_major(f)],
        lambda f: [defaultdict(int, batch) for batch in batch_major(f)],
    ]
    for make in makers:
        features = parts(ROWS)
        job = make(features)
        features = {}
        flat = consume(job)
        assert engine != "native" or flat.plan.strategy == "inplace"


def test_what_cannot_be_emptied_stays_as_it_is(engine: str) -> None:
    makers: list[Callable[[Features], Any]] = [
        lambda f: {key: tuple(entries) for key, entries in f.items()},
        MappingProxyType,
        UserDict,
        lambda f: tuple(batch_major(f)),
        lambda f: [MappingProxyType(batch) for batch in batch_major(f)],
    ]
    for make in makers:
        features = parts(ROWS)
        job = make(features)
        features = {}
        entries = [
            t
            for x in (job.values() if hasattr(job, "values") else job)
            for t in (x.values() if hasattr(x, "values") else x)
        ]
        before, want = (
            [t.clone() for t in entries],
            answer(dict(job) if hasattr(job, "items") else list(job)),
        )
        assert_all_bits(list(goflat.flatten_(job, max_growth=LOTS)), want)
        assert_all_bits(entries, before)
        if type(job) in (dict, list):
            assert not job
        else:
            assert len(job) in (2, 3)


def test_a_list_with_a_tuple_inside_is_not_written_over() -> None:
    """Views of one dead tensor, some of which lie in a tuple that the caller has."""
    cut = parts([[2, 3], [1, 4]])
    kept = tuple(cut["1"])
    features: dict[str, Any] = {"0": cut["0"], "1": kept}
    cut.clear()
    before, want = [t.clone() for t in kept], answer(features)
    planned = goflat.plan(features, inplace=True)
    assert planned.why("1", 0) == "copied: they are in a tuple"
    assert planned.why("0", 0).startswith("copied: ")
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert_all_bits(list(kept), before)


def test_outer_container_may_be_held_by_others(engine: str) -> None:
    features = parts(ROWS)
    twin = features
    flat = consume(features)
    assert twin == {}
    assert engine != "native" or flat.plan.growth == 0


# cat_


def test_cat(engine: str) -> None:
    for rows in ([[3], [1], [0], [2]], [[4]], [[0], [0]]):
        for features in (parts(rows), apart(rows)):
            tensors = [entries.pop() for entries in features.values()]
            want = torch.cat(tensors).clone()
            assert_bits(goflat.cat_(tensors, max_growth=LOTS), want)
            assert tensors == []


def test_cat_words_its_errors_by_position(engine: str) -> None:
    tensors = [torch.ones(2, 3), torch.ones(2, 4)]
    with pytest.raises(
        goflat.ShapeError, match=r"tensor 1: got \(2, 4\), want \(\*, 3\)"
    ) as caught:
        goflat.cat_(tensors, max_growth=LOTS)
    assert (caught.value.key, caught.value.batch) == (None, 1)
    assert [t.shape for t in tensors] == [(2, 3), (2, 4)]
    with pytest.raises(goflat.MemoryLimitError, match="at most 0 bytes"):
        goflat.cat_([torch.ones(2), torch.ones(3)], max_growth=0)
    with pytest.raises(goflat.DTypeError, match="a list of arrays"):
        goflat.cat_(torch.ones(3))


def test_cat_of_a_tuple_leaves_it_alone(engine: str) -> None:
    tensors = (torch.ones(2, 3), torch.zeros(1, 3))
    assert goflat.cat_(tensors, max_growth=LOTS).shape == (3, 3)
    assert [int(t.sum()) for t in tensors] == [6, 0]


# NumPy and others


def test_numpy(engine: str) -> None:
    arrays: Any = numpy_job(apart(ROWS))
    want = [
        out.numpy()
        for out in answer({k: list(map(torch.from_numpy, v)) for k, v in arrays.items()})
    ]
    flat = goflat.flatten_(arrays, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert arrays == {}
    twin = np.ones((2, 3))
    rows = [twin, np.zeros((1, 3))]
    assert goflat.cat_(rows, max_growth=LOTS).shape == (3, 3)
    assert rows == []
    assert (twin == 1).all()


def test_other_libraries(engine: str) -> None:
    arrays: Any = {key: [Standard(t.numpy()) for t in ts] for key, ts in apart(ROWS).items()}
    flat = goflat.flatten_(arrays, max_growth=LOTS)
    assert type(flat[0]) is Standard
    assert arrays == {}
