"""What adopted outputs live through, and how they are adopted again."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native, _ownership
from goflat._ownership import ADOPTABLE, HELD, IS_ADOPTED, OVERLAP, SAVED, SHARED, STRIDED
from helpers.adopting import ROW, Memory, adopt, joined, live, raw, surveyed

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def same(a: Any, b: Tensor) -> bool:
    return torch.equal(torch.as_tensor(a), b)


def test_what_results_can_do() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    want = torch.tensor(out.tolist())
    saved = io.BytesIO()
    torch.save(out, saved)
    saved.seek(0)
    assert same(torch.load(saved), want)
    copies = [
        out.clone(),
        out.cpu(),
        copy.copy(out),
        copy.deepcopy(out),
        pickle.loads(pickle.dumps(out)),
    ]
    assert all(same(c, want) for c in copies)
    assert same(out.to(torch.float64).float(), want)
    assert same(torch.empty(5, ROW).copy_(out), want)
    assert same(out.numpy(), want)
    assert same(np.from_dlpack(out).copy(), want)
    assert same(torch.from_dlpack(out), want)
    assert same(torch.cat([out, out])[5:], want)
    assert same(goflat.flatten({"a": [out], "b": [out]})[0][5:], want)
    assert same(torch.stack(out.unbind()), want)
    assert same(out.view(torch.int32).view(torch.float32), want)
    with pytest.raises(RuntimeError, match="resiz"):
        out.resize_(100, ROW)
    assert same(out.resize_(5, ROW), want)
    out.requires_grad_()
    (out * 2).sum().backward()
    assert out.grad is not None
    assert out.grad.tolist() == [[2.0] * ROW] * 5
    del out, copies
    assert memory.uses() == 0


def test_results_in_shared_memory() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    want = torch.tensor(out.tolist())
    out.share_memory_()  # moves it there
    assert same(out, want)
    assert (live(), memory.uses()) == (0, 0)


def test_twins_keep_the_memory() -> None:
    memory = Memory()
    want = memory.want(0, 5)
    for twin in (Tensor_numpy, torch.from_dlpack, np.from_dlpack, lambda t: t[2:], torch.detach):
        made = twin(joined(memory, 2, 3))
        assert (live(), memory.uses()) == (1, 2)
        got = np.ascontiguousarray(made).tobytes()
        assert want.endswith(got)
        del made
        assert (live(), memory.uses()) == (0, 0)


def Tensor_numpy(t: Tensor) -> Any:
    return t.numpy()


def test_results_are_adoptable_again() -> None:
    memory = Memory()
    entries = [joined(memory, 2, 3)]
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    keep: Any = entries[0]
    assert surveyed(entries) == [(IS_ADOPTED, HELD)]
    keep = entries[0].detach()
    assert surveyed(entries) == [(IS_ADOPTED, SHARED)]
    keep = torch.from_dlpack(entries[0])
    assert surveyed(entries) == [(IS_ADOPTED, SAVED)]
    assert surveyed([keep])[0][1] != ADOPTABLE
    del keep
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    entries = list(entries.pop().split(2))
    assert {reason for _, reason in surveyed(entries)} == {ADOPTABLE}
    entries = [entries[0], entries[1][1:], entries[1]]
    assert {reason for _, reason in surveyed(entries)} <= {OVERLAP, SHARED}
    entries = [joined(memory, 2, 2).t()]
    assert surveyed(entries)[0][1] == STRIDED
    entries.clear()


def test_a_foreign_tensor_at_the_same_address_is_no_result() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    twin = [memory.entry(0, 5)]
    assert twin[0].data_ptr() == out.data_ptr()
    assert surveyed(twin)[0][1] == _ownership.FOREIGN
    del out


def test_no_chains() -> None:
    memory = Memory()
    out = joined(memory, 2, 3, 4)
    for _ in range(20):
        out = adopt(memory.address, (9, ROW), [out])
        assert live() == 1
        assert memory.uses() == 3
    out = adopt(memory.address, (5, ROW), [out])
    assert memory.uses() == 2  # nothing lies in the third
    out = adopt(memory.address + 3 * memory.row_bytes, (1, ROW), [out])
    assert (live(), memory.uses()) == (0, 1)
    assert raw(out) == memory.want(3, 4)
    del out
    assert memory.uses() == 0


def test_results_and_entries_together() -> None:
    memory = Memory()
    entries = memory.entries(1, 2, 3, 4)
    out = adopt(memory.address, (3, ROW), entries[:2])
    more = adopt(memory.address, (10, ROW), [*out.split(1), *entries[2:]])
    del entries, out
    assert (live(), memory.uses()) == (1, 4)
    assert raw(more) == memory.want(0, 10)
    del more


def test_two_outputs_over_one_storage() -> None:
    memory = Memory()
    entries = memory.entries(2, 4, 2)
    left = adopt(memory.address, (4, ROW), entries[:2])
    right = adopt(memory.address + 4 * memory.row_bytes, (4, ROW), entries[1:])
    del entries
    assert (live(), memory.uses()) == (2, 3)
    del left
    assert (live(), memory.uses()) == (1, 2)
    assert raw(right) == memory.want(4, 8)
    del right


def test_results_keep_a_storage_that_lies_beside_them() -> None:
    """The planner may ask for it, so that torch's statistics count what an output takes."""
    memory = Memory()
    first, second, third = memory.entries(2, 2, 2)
    out = adopt(memory.address, (3, ROW), [first, second, third])
    del first, second, third
    assert memory.uses() == 3
    again = adopt(memory.address + 6 * memory.row_bytes, (1, ROW), [out])  # none of them lies there
    del out
    assert memory.uses() == 3
    del again
