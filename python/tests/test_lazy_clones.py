"""Tensors made by copy-on-write: their memory is another tensor's until it is asked for.

Whatever goflat writes, the tensor that they were made of never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("engine")

LOTS = 1 << 30  # bytes that consuming calls may grow


def clone(source: Tensor) -> Tensor:
    return torch._lazy_clone(source)  # type: ignore[attr-defined, no-any-return]


def source() -> Tensor:
    return torch.arange(12.0).reshape(4, 3).clone()


WRITERS: dict[str, Callable[[Tensor], Any]] = {
    "cat": lambda out: goflat.cat([torch.ones(2, 3), torch.ones(2, 3)], out=out),
    "flatten": lambda out: goflat.flatten({"a": [torch.ones(4, 3)]}, out=[out]),
    "packed": lambda out: goflat.flatten({"a": [torch.ones(4, 3)]}, out=out, packed=True),
    "strided": lambda out: goflat.cat([torch.ones(4, 2)], out=out[:, 1:]),
    "cast": lambda out: goflat.cat([torch.ones(4, 3, dtype=torch.half)], out=out, dtype=out.dtype),
    "bound": lambda out: goflat.plan({"a": [torch.ones(4, 3)]}).bind(
        {"a": [torch.ones(4, 3)]}, out=[out]
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_an_out_is_not_written_for_others(write: Callable[[Tensor], Any]) -> None:
    kept = source()
    out = clone(kept)
    write(out)
    assert kept.equal(source())
    assert bool((out[:, 1:] == 1).all())


@pytest.mark.parametrize("entry", [slice(0, 2), slice(None, None, 2)], ids=["rows", "every other"])
def test_an_entry_in_the_memory_of_an_out_is_found(entry: slice) -> None:
    goflat.cat([source(), source()])  # from now on native calls read tensors in place
    kept = source()
    out = clone(kept)
    with pytest.raises(goflat.OverlapError):
        goflat.cat([torch.ones(2, 3), out[entry]], out=out)
    assert kept.equal(out)


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("held", [False, True])
def test_consuming_leaves_what_they_were_made_of(others: int, held: bool) -> None:
    kept = source()
    entries = [torch.ones(4, 3) for _ in range(others)] + [clone(kept), clone(kept)]
    keep = entries[-1] if held else None
    want = torch.cat(entries)
    features = {key: [entries.pop(0)] for key in "abcd"[: len(entries)]}
    (flat,) = goflat.flatten_(features, max_growth=LOTS)
    assert flat.equal(want)
    flat.zero_()
    assert kept.equal(source())
    assert keep is None or keep.equal(kept)
    flat.fill_(1)
    kept.zero_()
    assert bool((flat == 1).all())


def test_a_bound_plan_follows_entries_that_are_written_to() -> None:
    kept = source()
    features = {"a": [source()], "b": [clone(kept)]}
    bound = goflat.plan(features).bind(features)
    features["b"][0].fill_(7)
    assert bool((bound()[0][4:] == 7).all())
    assert kept.equal(source())
