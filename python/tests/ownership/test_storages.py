"""Several entries of one storage, and what records say of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from goflat import _native, _ownership
from goflat._ownership import (
    ADOPTABLE,
    HELD,
    IS_ADOPTED,
    IS_GRAD,
    IS_STRIDED,
    IS_VIEW,
    NOT_PLAIN,
    OVERLAP,
    SHARED,
    STRIDED,
    TWICE,
    UNKNOWN,
)
from helpers.owning import Special, conv, new, reasons

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_twice(way: str) -> None:
    a, b, leaf = new(3), new(3), torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(new(3))
    entries = [a, b, a, leaf, leaf, parameter, parameter]
    del a, b, leaf, parameter
    assert reasons(entries) == [TWICE, ADOPTABLE, TWICE, TWICE, TWICE, TWICE, TWICE], way


def test_overlaps(way: str) -> None:
    cases: dict[str, Callable[[], list[Tensor]]] = {
        "partly": lambda: (lambda t: [t[0:4], t[2:6]])(new(6, 2)),
        "backwards": lambda: (lambda t: [t[2:6], t[0:4]])(new(6, 2)),
        "the same": lambda: (lambda t: [t[0:2], t[0:2]])(new(6, 2)),
        "one inside the other": lambda: (lambda t: [t[0:6], t[3:4]])(new(6, 2)),
        "without a base": lambda: (lambda t: [t.detach(), t.detach()])(new(6, 2)),
    }
    for name, make in cases.items():
        entries = make()
        assert reasons(entries) == [OVERLAP] * 2, (name, way)
    entries = (lambda t: [t[0:2], t[2:2], t[1:1], t[2:4]])(new(6, 2))
    assert reasons(entries) == [ADOPTABLE] * 4, way


def test_strided(way: str) -> None:
    entries = [
        new(3, 4).t(),
        new(6)[::2],
        new(1, 3).expand(2, 3),
        new(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]
    assert reasons(entries) == [STRIDED] * 4, way
    assert all(record.flags & IS_STRIDED for record in _ownership.survey(entries))
    columns = list(new(4, 6).split(2, dim=1))  # apart, but each lies in the span of the others
    assert reasons(columns) == [OVERLAP] * 3, way


def test_one_tensor_of_a_storage_is_no_entry(way: str) -> None:
    """Each view counts, also where others are of no interest: parameters and the like."""
    base = new(6, 2)
    entries: list[Any] = [base[:3], base[3:].as_subclass(Special)]
    del base
    assert reasons(entries) == [SHARED, NOT_PLAIN], way


def test_storages_that_were_exchanged(way: str) -> None:
    entries = list(new(6, 2).split(3))
    entries[0].data = new(3, 2)  # still a view of the base, with another memory: doubtful
    assert reasons(entries) == [ADOPTABLE, SHARED], way


def test_a_base_with_a_new_storage(way: str) -> None:
    base = new(6, 2)
    entries = [base[:3]]
    base.data = new(1)
    assert reasons(entries) == [ADOPTABLE], way
    other = base.detach()
    assert reasons(entries) == [ADOPTABLE], way
    assert reasons([other]) == [HELD]


# What records say


def test_records(way: str) -> None:
    base = torch.arange(12.0).reshape(6, 2)
    storage, address = base.untyped_storage()._cdata, base.data_ptr()
    entries = [base[2:5], conv(True), torch.empty(0, 3)]
    del base
    view, grad, empty = _ownership.survey(entries)
    assert view == (address + 16, 24, storage, address, 48, 1, 0, IS_VIEW, ADOPTABLE), way
    assert grad.flags == IS_GRAD
    assert grad.bytes == grad.storage_bytes == 2 * 4 * 5 * 4
    assert (grad.address, grad.storage_address) == (entries[1].data_ptr(),) * 2
    assert (empty.address, empty.bytes, empty.storage_bytes, empty.reason) == (0, 0, 0, ADOPTABLE)
    assert not any(record.flags & IS_ADOPTED for record in (view, grad, empty))


def test_references_that_are_accounted_for(way: str) -> None:
    entries = [new(3), new(4)]
    lists = [list(entries), tuple(entries)]
    assert reasons(entries, 2) == [ADOPTABLE] * 2, way
    assert reasons(entries, 1) == [HELD] * 2, way
    assert reasons(entries, 3) == [UNKNOWN] * 2, way
    del lists
    assert reasons(entries) == [ADOPTABLE] * 2, way


def random_state(rng: random.Random, keep: list[Any]) -> list[Any]:
    """Return one or more entries in a random state."""
    t = torch.ones(rng.randrange(1, 9), rng.randrange(0, 4), requires_grad=rng.random() < 0.1)
    if rng.random() < 0.3:
        t = t * 2
    entries = [t]
    if rng.random() < 0.4:
        entries = list(t.split(rng.randrange(1, 4), dim=int(rng.random() < 0.2)))
    if rng.random() < 0.2:
        entries = [e.detach() for e in entries]
    acts: list[Callable[[Tensor], Any]] = [
        lambda e: e,
        lambda e: e.detach(),
        lambda e: e[:1],
        lambda e: e.untyped_storage(),
        lambda e: e.exp(),
        lambda e: torch.ones(1, requires_grad=True) * e,
        lambda e: e.detach().numpy(),
        lambda _: t,
    ]
    while rng.random() < 0.4:
        keep.append(rng.choice(acts)(rng.choice(entries)))
    if rng.random() < 0.5:
        keep.clear()
    rng.shuffle(entries)
    return entries[: rng.randrange(1, len(entries) + 1)]


@pytest.mark.parametrize("seed", range(60))
def test_both_ways_give_the_same_answers(seed: int) -> None:
    rng = random.Random(seed)
    keep: list[Any] = []
    entries = [e for _ in range(rng.randrange(1, 12)) for e in random_state(rng, keep)]
    if rng.random() < 0.3:
        entries.append(rng.choice(entries))
    rng.shuffle(entries)
    before = _ownership.survey(entries)
    _ownership.meet(slow=True)
    try:
        slow = _ownership.survey(entries)
    finally:
        _ownership._met.clear()
        _ownership.meet()
    assert slow == before
    assert _ownership.survey(entries) == before  # now that all storages have Python objects
