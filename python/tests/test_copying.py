"""Copies on the CPU, in every way in which threads may share them."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import goflat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

# Bytes around what the copy decides by: cache lines, long pieces, shares, sizes worth threads.
SIZES = (0, 1, 63, 64, 65, 127, 129, 4095, 4096, 4097, 100_000, (128 << 10) + 1, (256 << 10) - 1)
LARGE = (256 << 10, (1 << 20) + 3, (2 << 20) + 77, (5 << 20) + 1)


@pytest.fixture(params=[1, 2, 3, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def wake() -> None:
    """Make torch's threads spin, as they do after any operation of theirs."""
    torch.arange(1 << 18).add_(1)


def placed(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Return tensors of bytes at odd addresses inside one buffer."""
    rng, at = random.Random(seed), 0
    tensors = []
    memory = torch.randint(256, (sum(sizes) + 70 * len(sizes),), dtype=torch.uint8)
    for size in sizes:
        at += rng.randrange(70)
        tensors.append(memory[at : at + size])
        at += size
    return tensors


def check(features: dict[int, list[Tensor]], offset: int = 5) -> None:
    """Compare flatten, with and without outputs of ours between guards, with torch.cat."""
    want = [torch.cat(entries) for entries in zip(*features.values(), strict=True)]
    got = goflat.flatten(features)
    assert all(map(torch.equal, got, want))
    memory = [torch.full((len(w) + 2 * offset + 64,), 77, dtype=torch.uint8) for w in want]
    outs = [m[offset : offset + len(w)] for m, w in zip(memory, want, strict=True)]
    goflat.flatten(features, out=outs)
    for m, w in zip(memory, want, strict=True):
        assert torch.equal(m[offset : offset + len(w)], w)
        assert bool((m[:offset] == 77).all() & (m[offset + len(w) :] == 77).all())


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("large", LARGE)
def test_sizes_and_alignments(threads: int, large: int, awake: bool) -> None:
    tensors = placed([*SIZES, large, *SIZES[::-1], 300_000], large)
    if awake:
        wake()
    check({k: tensors[k * 3 : k * 3 + 3] for k in range(len(tensors) // 3)}, offset=large % 64)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_job_equals_cat(data: Any) -> None:
    sizes = st.one_of(st.integers(0, 300), st.integers(0, 200_000), st.sampled_from(SIZES + LARGE))
    keys, batches = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    job = data.draw(st.lists(sizes, min_size=keys * batches, max_size=keys * batches))
    tensors = placed(job, data.draw(st.integers(0, 9)))
    if data.draw(st.booleans()):
        wake()
    check({k: tensors[k * batches : (k + 1) * batches] for k in range(keys)})


def test_many_small_pieces(threads: int) -> None:
    rng = random.Random(1)
    tensors = placed([rng.randrange(700) for _ in range(6000)], 2)
    wake()
    check({k: tensors[k * 4 : k * 4 + 4] for k in range(1500)})


def test_strided_entries_and_other_dims(threads: int) -> None:
    wide = torch.randn(600, 1500)
    features = {"t": [wide.t()], "n": [torch.randn(1500, 600)]}
    wake()
    assert torch.equal(goflat.flatten(features)[0], torch.cat([wide.t(), features["n"][0]]))
    assert torch.equal(
        goflat.flatten(features, dim=1)[0], torch.cat([wide.t(), features["n"][0]], 1)
    )


def test_packed(threads: int) -> None:
    tensors = placed([900_000, 5, 70_000, 800_000], 3)
    wake()
    got = goflat.flatten({"a": tensors[:2], "b": tensors[2:]}, packed=True)
    want = torch.cat([tensors[0], tensors[2], tensors[1], tensors[3]])
    assert torch.equal(got.buffer, want)


def test_several_python_threads_each_have_a_team() -> None:
    features = {k: [torch.randn(300_000) for _ in range(2)] for k in range(3)}
    want = [torch.cat(entries) for entries in zip(*features.values(), strict=True)]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            wake()
            if not all(map(torch.equal, goflat.flatten(features), want)):
                wrong.append(threading.get_ident())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("rows", [10, 3000, 300_000, 3_000_000])
def test_numpy(rows: int) -> None:
    rng = np.random.default_rng(rows)
    features = {k: [rng.integers(255, size=rows + k, dtype=np.uint8)[k:]] * 2 for k in range(4)}
    for b, got in enumerate(goflat.flatten(features)):
        assert np.array_equal(got, np.concatenate([features[k][b] for k in features]))
