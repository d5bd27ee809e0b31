"""Outputs over one storage and over several."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from goflat import _native, _ownership
from goflat._ownership import ADOPTABLE, IS_ADOPTED
from helpers.adopting import ROW, Memory, adopt, joined, live, raw
from helpers.jobs import DTYPES

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_an_output_over_two_storages() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    assert live() == 1
    assert (type(out), out.shape, out.dtype, out.stride()) == (
        torch.Tensor,
        (5, ROW),
        torch.float32,
        (ROW, 1),
    )
    assert (out.is_leaf, out.requires_grad, out._base, out.is_contiguous()) == (
        True,
        False,
        None,
        True,
    )
    assert out.data_ptr() == memory.address
    assert raw(out) == memory.want(0, 5)
    assert memory.uses() == 2
    out.fill_(1)
    assert memory.entry(0, 5).tolist() == [[1.0] * ROW] * 5
    del out
    assert memory.uses() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    memory = Memory(dtype=dtype)
    out = joined(memory, 2, 3)
    assert (out.dtype, out.shape) == (dtype, (5, ROW))
    assert raw(out) == memory.want(0, 5)
    assert _ownership.survey([out], 1)[0].flags & IS_ADOPTED
    del out
    assert memory.uses() == 0


def test_shapes() -> None:
    memory = Memory()
    for shape in ((), (1,), (6,), (2, 1, 3), (1,) * 20 + (6,)):
        out = adopt(memory.address, shape, memory.entries(1, 1))
        assert (out.shape, out.is_contiguous(), out.tolist() is not None) == (shape, True, True)
    out = adopt(memory.address + 4, (5,), memory.entries(1, 1))  # at any element
    assert raw(out) == memory.want(0, 2)[4:]


def test_only_what_lies_under_is_kept() -> None:
    memory = Memory()
    entries = memory.entries(2, 2, 2)
    out = adopt(memory.address, (4, ROW), entries[:2])
    del entries
    assert memory.uses() == 2
    del out


def test_entries_die_at_once() -> None:
    memory = Memory()
    entries = memory.entries(2, 3)
    thing = threading.Event()
    entries[0].attribute = thing  # type: ignore[attr-defined]
    watches = [*map(weakref.ref, entries), weakref.ref(thing)]
    del thing
    out = adopt(memory.address, (5, ROW), entries)
    entries.clear()
    assert [watch() for watch in watches] == [None] * 3
    del out


def test_several_entries_of_one_storage() -> None:
    memory = Memory()
    whole, other = memory.entries(6, 2)
    out = adopt(memory.address, (8, ROW), [*whole.split(2), other, whole[1:3], other])
    del whole, other
    assert memory.uses() == 2
    del out
    assert memory.uses() == 0


# An output inside one storage


def test_an_output_inside_one_storage(way: str) -> None:
    base = torch.arange(24.0).reshape(8, 3)
    entries = list(base.split([2, 6]))
    storage = base.untyped_storage()._cdata
    del base
    out = adopt(entries[1].data_ptr(), (2, ROW), entries)
    assert live() == 0
    assert out.untyped_storage()._cdata == storage
    assert (type(out), out._base, out.storage_offset()) == (torch.Tensor, None, 6)
    assert out.tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]
    entries.clear()
    assert _ownership.survey([out], 1)[0][-2:] == (0, ADOPTABLE), way
    out.resize_(9, ROW)
    assert out[0].tolist() == [6.0, 7.0, 8.0]


def test_an_output_that_does_not_begin_at_an_element() -> None:
    memory = Memory()
    (entry,) = memory.entries(4)
    out = adopt(memory.address + 2, (2, ROW), [entry])
    assert live() == 1
    assert raw(out) == memory.want(0, 4)[2:26]
    del out


def test_an_output_that_goes_beyond_its_storage() -> None:
    """As into what the allocator rounded up."""
    memory = Memory()
    (entry,) = memory.entries(4)
    out = adopt(memory.address + 6, (4, ROW), [entry])
    assert (live(), raw(out)) == (1, memory.want(0, 5)[6:54])
    del out


def test_a_storage_of_another_dtype() -> None:
    entry = torch.arange(6.0)
    like = torch.zeros(1, dtype=torch.int16)
    out = adopt(entry.data_ptr() + 2, (5,), [entry], like)
    assert (out.dtype, live()) == (torch.int16, 0)
    assert raw(out) == raw(entry)[2:12]


def test_inference_tensors() -> None:
    with torch.inference_mode():
        entry = torch.ones(4, ROW)
        inner = adopt(entry.data_ptr(), (2, ROW), [entry])
        assert inner.is_inference()
    outer = adopt(entry.data_ptr(), (2, ROW), [entry])
    assert not outer.is_inference()
    assert outer.requires_grad_().sum().item() == 6
    plain = torch.ones(4, ROW)
    with torch.inference_mode():
        assert adopt(plain.data_ptr(), (2, ROW), [plain]).is_inference()


def test_entries_that_require_grad() -> None:
    leaf = torch.ones(4, ROW, requires_grad=True)
    entry = leaf * 2
    out = adopt(entry.data_ptr(), (2, ROW), [entry])
    assert (out.requires_grad, out.is_leaf, out.grad_fn) == (False, True, None)
