"""Right bytes on the fake driver, whatever the entries look like."""

from __future__ import annotations

import random

import numpy as np

import goflat
from fake.child import in_child, lib


@in_child(seed=range(4))
def test_random_jobs(seed: int) -> None:
    r = random.Random(seed)
    for _ in range(60):
        grid, dim = random_job(r)
        arrays = [[lib.place(x, lib.CUDA1, shift=r.choice(SHIFTS)) for x in line] for line in grid]
        want = joined(grid, dim)
        if r.random() < 0.4:
            flat = goflat.flatten(lib.features(arrays), out=room_for(r, want), dim=dim)
        else:
            flat = goflat.flatten(lib.features(arrays), dim=dim)
        lib.assert_right(flat, want)
        for line, originals in zip(arrays, grid, strict=True):
            lib.assert_right(line, originals)
        lib.check_memory()


@in_child()
def test_every_pair_of_alignments() -> None:
    r = random.Random(5)
    parts = [[bits(r, (rows, 5), "u1")] for rows in (1, 8, 0, 30)]
    want = joined(parts, 0)
    for source in range(17):
        arrays = [[lib.place(x, lib.CUDA1, shift=source) for x in line] for line in parts]
        for target in range(17):
            out = lib.place(np.zeros_like(want[0]), lib.CUDA1, shift=target)
            lib.assert_right(goflat.flatten(lib.features(arrays), out=[out]), want)
    lib.check_memory()


@in_child()
def test_long_and_many_entries() -> None:
    """All three kernels, and more entries than one launch takes."""
    r = random.Random(6)
    for rows, keys in (([3, 60_000], 2), ([1], 3_000)):
        grid = [[bits(r, (r.choice(rows), 2), "u2") for _ in range(2)] for _ in range(keys)]
        arrays = [[lib.place(x, lib.CUDA1) for x in line] for line in grid]
        lib.reset()
        lib.assert_right(goflat.flatten(lib.features(arrays)), joined(grid, 0))
        assert lib.launches()


@in_child()
def test_batch_major_and_cat() -> None:
    grid, want = lib.small()
    keys = range(len(grid))
    lib.assert_right(goflat.flatten([{k: grid[k][b] for k in keys} for b in range(2)]), want)
    lib.assert_right([goflat.cat([line[1] for line in grid])], want[1:])


@in_child()
def test_nothing_to_move_calls_no_driver() -> None:
    empty = np.empty((0, 4), np.float32)
    grid = [[lib.place(empty), lib.place(empty)], [lib.place(empty), lib.place(empty)]]
    lib.reset()
    flat = goflat.flatten(lib.features(grid))
    assert [out.shape for out in flat] == [(0, 4), (0, 4)]
    assert [out.device for out in flat] == ["device 2:1"] * 2
    legacy = goflat.flatten({"a": [lib.place(np.empty(0, np.float32))]})
    assert legacy[0].shape == (0,)
    assert lib.log() == []


@in_child()
def test_legacy_entries_are_skipped() -> None:
    nothing, two = np.empty(0, np.float32), np.ones((2, 3), np.float32)
    grid = [[lib.place(nothing), lib.place(two)], [lib.place(two), lib.place(nothing)]]
    lib.assert_right(goflat.flatten(lib.features(grid)), [two, two])


# ---- jobs ----

SHIFTS = (0, 0, 0, 1, 2, 4, 8, 3, 15)
DTYPES = ("u1", "u2", "f4", "f8", "c16", "b1", "i8")


def joined(grid: list[list[np.ndarray]], dim: int) -> list[np.ndarray]:

    return [np.ascontiguousarray(np.concatenate(c, dim)) for c in zip(*grid, strict=True)]


def random_job(r: random.Random) -> tuple[list[list[np.ndarray]], int]:
    """Return a ragged grid of arrays, and the dim to join along."""
    dtype, ndim = r.choice(DTYPES), r.randint(1, 4)
    shape = [r.randint(1, 5) for _ in range(ndim)]
    if r.random() < 0.3:
        shape[r.randrange(ndim)] = r.randint(100, 900)
    dim, plain = r.randrange(ndim), r.random() < 0.3
    keys, batches = r.randint(1, 5), r.randint(1, 3)

    def entry() -> np.ndarray:
        extents = [*shape[:dim], max(0, r.randint(-1, 6)), *shape[dim + 1 :]]
        return bits(r, extents, dtype) if plain else strided(r, extents, dtype)

    return [[entry() for _ in range(batches)] for _ in range(keys)], dim


def bits(r: random.Random, shape: list[int] | tuple[int, ...], dtype: str) -> np.ndarray:

    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.frombuffer(r.randbytes(count), np.uint8)
    return (raw & 1 if dtype == "b1" else raw).view(dtype).reshape(shape)


def strided(r: random.Random, shape: list[int], dtype: str, repeat: bool = True) -> np.ndarray:
    """Return an array of that shape that lies in memory in some way, repeated elements included."""

    order = r.sample(range(len(shape)), len(shape))
    steps = [r.choice((1, 1, 2, -1, -2)) for _ in shape]
    whole = bits(r, [abs(steps[d]) * shape[d] + r.randint(0, 1) for d in order], dtype)
    cut = tuple(slice(None, abs(steps[d]) * shape[d], abs(steps[d])) for d in order)
    turned = whole[cut][tuple(slice(None, None, -1 if steps[d] < 0 else 1) for d in order)]
    view = turned.transpose([order.index(d) for d in range(len(shape))])
    if repeat and r.random() < 0.2 and 0 not in shape:
        d = r.randrange(len(shape))
        view = np.broadcast_to(np.take(view, [0], d), shape)
    return view


def room_for(r: random.Random, want: list[np.ndarray]) -> list[object]:
    """Return arrays to write to, some of them strided."""

    views = [strided(r, list(x.shape), x.dtype.str[1:], repeat=False) for x in want]
    return [lib.place(view, lib.CUDA1, shift=r.choice(SHIFTS)) for view in views]
