"""Jobs beyond 32 bits: elements, bytes and offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import goflat

pytestmark = pytest.mark.usefixtures("engine")

ROW = 2**16  # bytes


def need(gib: int) -> None:
    """Skip the test on a machine with less free memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if free < gib * 2**20:
        pytest.skip(f"needs {gib} GiB of free memory")


def marked(rows: int, mark: int) -> torch.Tensor:
    """Return zeros, untouched memory but for `mark` in the first and last byte of each end row."""
    t = torch.from_numpy(np.zeros((rows, ROW), np.uint8))
    t[0, 0] = t[0, -1] = t[-1, 0] = t[-1, -1] = mark
    return t


def check(flat: torch.Tensor, rows: list[int]) -> None:
    """Assert that every entry's marks are where they belong, and that nothing else is marked."""
    assert flat.shape == (sum(rows), ROW)
    start = 0
    for mark, n in enumerate(rows, 1):
        for row in {start, start + n - 1}:
            assert flat[row, 0] == flat[row, -1] == mark
        start += n
    words = sum(2 * len({0, n - 1}) for n in rows)  # the first and last of each end row
    assert int(torch.count_nonzero(flat.view(torch.int64))) == words


def test_more_than_2_to_the_31_elements() -> None:
    need(6)
    rows = [2**15 - 1, 2, 1, 3]  # the second entry lies on both sides of 2^31
    features = {str(i): [marked(n, i + 1)] for i, n in enumerate(rows)}
    check(goflat.flatten(features)[0], rows)


@pytest.mark.slow
def test_more_than_2_to_the_32_bytes() -> None:
    need(12)
    rows = [2**15 - 1, 2, 2**15 - 2, 2, 1]
    features = {str(i): [marked(n, i + 1)] for i, n in enumerate(rows)}
    check(goflat.flatten(features)[0], rows)


@pytest.mark.slow
def test_last_batch_of_a_packed_job_beyond_2_to_the_32_bytes() -> None:
    need(12)
    rows = [2**15, 2**15, 2]
    flat = goflat.flatten({"a": [marked(n, i + 1) for i, n in enumerate(rows)]}, packed=True)
    assert flat.buffer is not None
    check(flat.buffer, rows)
    check(flat[2] // 3, [2])


@pytest.mark.slow
def test_strided_entry_beyond_2_to_the_31_elements() -> None:
    need(10)
    wide = torch.from_numpy(np.zeros((2**15 + 2, 2 * ROW), np.uint8))
    wide[-1, -1], wide[-1, -2], wide[2**15, 1] = 7, 9, 5
    (flat,) = goflat.flatten({"a": [wide[:, 1::2]], "b": [torch.zeros(1, ROW, dtype=torch.uint8)]})
    assert (int(flat[-2, -1]), int(flat[2**15, 0])) == (7, 5)
    assert int(torch.count_nonzero(flat.view(torch.int64))) == 2
