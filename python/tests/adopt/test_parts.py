"""Claims, the parts below an output, and bad input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _native, _streams
from goflat._ownership import ADOPTABLE, IS_ADOPTED
from helpers.adopting import ROW, UNCLAIM, Memory, adopt, joined, live, raw, surveyed

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_claims_end_after_the_memory_was_given_back() -> None:
    memory = Memory()
    told: list[tuple[int, int, int]] = []
    unclaim = UNCLAIM(lambda lo, hi: told.append((lo, hi, memory.uses())))
    out = joined(memory, 2, 3, claim=(7, 2**62, unclaim))
    assert told == []
    del out
    assert told == [(7, 2**62, 0)]
    told.clear()
    out = adopt(memory.address, (1, ROW), memory.entries(4), claim=(1, 2, unclaim))
    assert told == [(1, 2, 1)]  # one of torch's own: no claim is needed
    told.clear()
    with pytest.raises(ValueError, match="at least one byte"):
        adopt(memory.address, (0, ROW), memory.entries(2, 2), claim=(1, 2, unclaim))
    del out
    assert told == []


# Parts


def test_parts() -> None:
    memory = Memory()
    out = joined(memory, 2, 3)
    for tensor in (out, out[1:], out.detach(), out.view(-1), out.t()):
        parts = _streams.under(tensor)
        assert [raw(part) for part in parts] in (
            [memory.want(0, 2), memory.want(2, 5)],
            [memory.want(2, 5), memory.want(0, 2)],
        )
        assert {part._base for part in parts} == {None}
    uses = memory.uses()
    del parts, tensor
    assert (uses, memory.uses()) == (2, 2)
    assert surveyed([torch.ones(2)]) == [(0, ADOPTABLE)]
    plain = torch.ones(3)
    assert _streams.under(plain) == [plain] or _streams.under(plain)[0] is plain
    meta = torch.ones(3, device="meta")
    assert _streams.under(meta)[0] is meta
    entries = [out]
    del out
    assert surveyed(entries) == [(IS_ADOPTED, ADOPTABLE)]
    entries.clear()


def test_a_part_outlives_the_result() -> None:
    memory = Memory()
    parts = _streams.under(joined(memory, 2, 3))
    assert (live(), memory.uses()) == (0, 2)
    del parts


class Stream:
    """Stands in for a stream where there is none."""

    cuda_stream = 0


def test_record_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    seen: list[tuple[int, Any]] = []
    out, plain, stream = joined(memory, 2, 3), torch.ones(2), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    goflat.record_stream([out, plain, np.ones(2)], stream)  # nothing to do on the CPU
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, s: seen.append((t.numel(), s)))
    goflat.record_stream(goflat.flatten({"a": [torch.ones(4, 1)]}), stream)
    goflat.record_stream((out, plain), stream)
    assert sorted(n for n, _ in seen) == [2, 4, 6, 9]
    assert {s for _, s in seen} == {stream}
    with pytest.raises(goflat.DTypeError, match="got object, want a tensor"):
        goflat.record_stream([plain, object()], stream)
    del out


# Bad input


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((0, 3), ValueError),
        ((-1, 3), ValueError),
        ((2**40, 2**40), ValueError),
        ((1,) * 65, ValueError),
        (("a",), TypeError),
        ((2**70,), OverflowError),
    ],
)
def test_bad_shapes(shape: Any, error: Any) -> None:
    memory = Memory()
    with pytest.raises(error):
        adopt(memory.address, shape, memory.entries(2, 2))
    assert (live(), memory.uses()) == (0, 0)


def test_what_is_no_tensor() -> None:
    memory = Memory()
    entries: list[Any] = memory.entries(2, 2)
    for bad in ([*entries, np.ones(3)], [None, *entries], [*entries, 3]):
        with pytest.raises(TypeError, match="torch tensors"):
            adopt(memory.address, (4, ROW), bad, entries[0])
    with pytest.raises(TypeError, match="torch tensors"):
        adopt(memory.address, (4, ROW), entries, np.ones(3))  # type: ignore[arg-type]
    del entries, bad
    assert (live(), memory.uses()) == (0, 0)
