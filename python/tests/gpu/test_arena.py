"""Arena on a GPU: no growth after it is made, any stream, graphs, several devices, CuPy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    DTYPES,
    bits,
    check,
    check_bits,
    growth,
    integers,
    job,
    need_devices,
    oracle,
    random_job,
    raw,
    refill,
    requested,
    run,
    seed_job,
    sleep,
    wait,
)

if TYPE_CHECKING:
    from torch import Tensor

    Features = dict[str, list[Tensor]]


def fill(arena: goflat.Arena, features: Features) -> goflat.Flat[Any]:
    for key, entries in features.items():
        for b, entry in enumerate(entries):
            arena.put(key, b, entry)
    return arena.flat


def produce(arena: goflat.Arena, features: Features) -> None:
    """Write twice the entries by out=, on the current stream."""
    for key, entries in features.items():
        for b, entry in enumerate(entries):
            torch.mul(entry, 2, out=arena[key][b])


def doubled(features: Features) -> list[Tensor]:
    """Return what `produce` must write, in bits."""
    return oracle({key: [t * 2 for t in entries] for key, entries in features.items()})


def numbers(rows: list[list[int]], row_shape: tuple[int, ...]) -> Features:
    """Return a job of ordinary numbers: doubling random bits would meet NaNs."""
    features = job(rows, row_shape)
    for entries in features.values():
        for t in entries:
            t.copy_(torch.arange(t.numel(), device=t.device).view(t.shape))
    return features


# Values


@pytest.mark.memcheck
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_values(dim: int) -> None:
    features = job([[2, 1, 0], [0, 4, 0], [3, 0, 2]], (2, 5), dim=dim)
    check(features, fill(goflat.Arena(goflat.Layout.of(features, dim=dim)), features), dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    for dim in 0, 1:
        features = job([[2, 1], [3, 0]], (4,), dtype, dim)
        flat = fill(goflat.Arena(goflat.Layout.of(features, dim=dim)), features)
        for got, want in zip(flat, goflat.flatten(features, dim=dim), strict=True):
            assert torch.equal(raw(got), raw(want))


def test_random_jobs() -> None:
    for seed in range(40):
        features, dim = random_job(seed)
        check(features, fill(goflat.Arena(goflat.Layout.of(features, dim=dim)), features), dim)


def test_the_device_without_a_number_is_the_current_one() -> None:
    layout = replace(goflat.Layout.of(job()), devices=(DEVICE.type, DEVICE.type))
    arena = goflat.Arena(layout)
    assert arena.layout == goflat.Layout.of(arena) == goflat.Layout.of(job())


def test_put_from_another_device_is_refused(cuda: None) -> None:
    arena = goflat.Arena(goflat.Layout.of(job()))
    with pytest.raises(goflat.DeviceError, match="key '0', batch 0: got cpu, want cuda:0"):
        arena.put("0", 0, torch.ones(2, 3))


# Memory


def test_grows_by_the_outputs_once_and_by_nothing_ever_after(cuda: None) -> None:
    features = seed_job()
    layout = goflat.Layout.of(features)
    arena, rose = growth(lambda: goflat.Arena(layout))
    assert rose == sum(out.nbytes for out in arena.flat) == 16 * 50 * 256 * 7 * 7 * 4
    places = [out.data_ptr() for out in arena.flat]
    for step in (lambda: fill(arena, features), lambda: produce(arena, features)):
        for _ in range(3):
            _, rose = growth(step)
            assert rose == 0
    assert [out.data_ptr() for out in arena.flat] == places


def test_random_arenas_grow_by_the_outputs(cuda: None) -> None:
    for seed in range(40):
        features, dim = random_job(seed)
        layout = goflat.Layout.of(features, dim=dim)
        arena, rose = growth(lambda x=layout: goflat.Arena(x))
        assert rose == sum(out.nbytes for out in arena.flat), seed
        flat, rose = growth(lambda a=arena, f=features: fill(a, f))
        assert rose == 0, seed
        check(features, flat, dim)


def test_memory_is_free_again_when_the_arena_is_gone(cuda: None) -> None:
    layout = goflat.Layout.of(seed_job())
    before = requested()
    arena = goflat.Arena(layout)
    assert requested() - before == sum(out.nbytes for out in arena.flat)
    del arena
    assert requested() == before


def test_out_of_memory_leaves_nothing(cuda: None) -> None:
    total = torch.cuda.mem_get_info()[1]
    few = goflat.Layout.of({"a": [bits((1, 1 << 20), torch.uint8)] * 2})
    layout = replace(few, rows={"a": (64, (total >> 20) + 1)})
    before = requested()
    with pytest.raises(goflat.OutOfMemoryError, match="out of memory"):
        goflat.Arena(layout)
    assert requested() == before


# Streams and graphs


def test_producers_on_another_stream(cuda: None) -> None:
    features = numbers([[200, 100], [0, 400]], (64, 7))
    arena = goflat.Arena(goflat.Layout.of(features))
    wait()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sleep(20)
        produce(arena, features)
    torch.cuda.current_stream().wait_stream(stream)
    check_bits(arena.flat, doubled(features))


def test_a_graph_over_an_arena(cuda: None) -> None:
    """Addresses stay, so producers and consumers are captured once and replayed."""
    features = numbers([[20, 10], [0, 40]], (64, 7))
    arena = goflat.Arena(goflat.Layout.of(features))
    produce(arena, features)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill(arena, features)
        copies = [out.clone() for out in arena.flat]
    for _ in range(3):
        refill(features)
        graph.replay()
        wait()
        check_bits(arena.flat, oracle(features))
        check_bits(copies, oracle(features))


def test_an_arena_made_while_capturing(cuda: None) -> None:
    features = job()
    layout = goflat.Layout.of(features)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arena = goflat.Arena(layout)
        fill(arena, features)
    for _ in range(3):
        refill(features)
        graph.replay()
        wait()
        check_bits(arena.flat, oracle(features))


# Devices


def test_batches_on_several_devices(cuda: None) -> None:
    need_devices(2)
    features = job()
    for entries in features.values():
        entries[1] = entries[1].to("cuda:1")
    arena = goflat.Arena(goflat.Layout.of(features))
    assert [str(out.device) for out in arena.flat] == ["cuda:0", "cuda:1"]
    fill(arena, features)
    torch.cuda.synchronize(1)
    check_bits(arena.flat, oracle(features))
    assert torch.cuda.current_device() == 0
    with pytest.raises(goflat.DeviceError, match="got cuda:0, want cuda:1"):
        arena.put("0", 1, integers(features["0"][0])[:1].view(torch.float32))


def untouched() -> None:
    """Run in a child: an arena on the CPU leaves CUDA alone."""
    arena = goflat.Arena(goflat.Layout.of({"a": [torch.ones(2, 3)]}))
    arena.put("a", 0, torch.ones(2, 3))
    assert not torch.cuda.is_initialized()


def test_an_arena_on_the_cpu_leaves_cuda_alone() -> None:
    run("from gpu.test_arena import untouched; untouched()")


# CuPy


def test_cupy(cuda: None) -> None:
    cp = pytest.importorskip("cupy")
    features = {"a": [cp.arange(6.0).reshape(2, 3)], "b": [cp.ones((1, 3))]}
    arena = goflat.Arena(goflat.Layout.of(features))
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    fill(arena, features)
    assert pool.used_bytes() == before
    assert type(arena.flat[0]) is cp.ndarray
    assert bool((arena.flat[0] == cp.concatenate([features["a"][0], features["b"][0]])).all())
    cp.multiply(features["a"][0], 2, out=arena["a"][0])
    assert bool((arena.flat[0][:2] == features["a"][0] * 2).all())
    assert arena.layout == goflat.Layout.of(features)
    with pytest.raises(goflat.OverlapError):
        arena.put("a", 0, arena.flat[0][1:])
    with pytest.raises(goflat.DTypeError, match="got float32, want float64"):
        arena.put("a", 0, features["a"][0].astype("float32"))
