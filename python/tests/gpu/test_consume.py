"""flatten_ and cat_ on a GPU: growth as predicted, results that last, streams, failures."""

from __future__ import annotations

import gc
import io
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native
from gpu.support import (
    DEVICE,
    DTYPES,
    GIB,
    bits,
    check_bits,
    entries,
    job,
    oracle,
    raw,
    refill,
    run,
    seed_job,
    sleep,
    wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Features = dict[str, list[Tensor]]

MIB = 1 << 20
LOTS = 1 << 50
ROWS = ((2, 1), (0, 4), (3, 2))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    core: Any = _native._core
    assert (core.bridge_LiveInPlace(), core.bridge_LiveAdopted()) == (0, 0)


def fresh() -> None:
    """Empty torch's cache, so that entries lie where a new process would have them."""
    gc.collect()
    wait()
    torch.cuda.empty_cache()


def measured(call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """Return what `call` returns, and how far the allocator's numbers rose meanwhile."""
    fresh()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    result = call()
    after = torch.cuda.memory_stats()
    names = ("requested", "allocated", "reserved")
    return result, {
        name: after[f"{name}_bytes.all.peak"] - before[f"{name}_bytes.all.current"]
        for name in names
    }


def parts(
    rows: Any, row_shape: Any = (3,), dtype: torch.dtype = torch.float32, order: int | None = None
) -> Features:
    """Return a job whose entries are views of one tensor that nobody refers to any more."""
    places = [(k, b) for k, line in enumerate(rows) for b in range(len(line))]
    if order is not None:
        random.Random(order).shuffle(places)
    whole, cut, start = bits((sum(map(sum, rows)), *row_shape), dtype), {}, 0
    for k, b in places:
        cut[k, b] = whole[start : start + rows[k][b]]
        start += rows[k][b]
    return {str(k): [cut.pop((k, b)) for b in range(len(line))] for k, line in enumerate(rows)}


def consume(features: Features, **options: Any) -> goflat.Flat[Any]:
    """Flatten, and compare with torch.cat."""
    want = oracle(features)
    flat = goflat.flatten_(features, **{"max_growth": LOTS, **options})
    check_bits(flat, want)
    assert features == {}
    return flat


# Values


@pytest.mark.memcheck
@pytest.mark.parametrize("order", [None, 0, 1, 2])
@pytest.mark.parametrize("row_shape", [(), (1,), (3,), (8,), (5, 7), (256,)])
def test_parts_of_one_tensor(order: int | None, row_shape: tuple[int, ...]) -> None:
    for dtype in (torch.uint8, torch.int16, torch.float32, torch.complex128):
        features = parts([[3, 1, 4], [1, 5, 9], [2, 6, 5]], row_shape, dtype, order)
        storage = features["0"][0].untyped_storage()
        lo, block = storage.data_ptr(), -(-storage.nbytes() // 512) * 512  # as torch rounds it up
        del storage
        flat = consume(features, max_growth=0)
        assert (flat.plan.strategy, flat.plan.in_place) == ("inplace", 3)
        assert all(lo <= t.data_ptr() <= lo + block - t.nbytes for t in flat)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    features = parts(ROWS, (3,), dtype, 1)
    want = [raw(t) for t in goflat.flatten(features)]
    flat = goflat.flatten_(features, max_growth=0)
    assert all(torch.equal(raw(out), w) for out, w in zip(flat, want, strict=True))


@pytest.mark.memcheck
@pytest.mark.parametrize("order", [None, 1])
def test_parts_of_many_mib(order: int | None) -> None:
    for row_shape in ((256, 7, 7), (1041,)):
        uniform, ragged = [[50] * 4] * 4, [[37, 1, 60], [0, 55, 9], [81, 4, 33]]
        for rows in (uniform, ragged):
            consume(parts(rows, row_shape, order=order), max_growth=0)
    consume(parts([[3000, 17], [1, 4095]], (1033,), torch.uint8, order), max_growth=0)


@pytest.mark.memcheck
def test_entries_of_their_own() -> None:
    consume(job(ROWS))
    consume(job([[5, 60], [7, 800]], (64, 9)))
    consume(job([[0, 0], [0, 0]]))
    strided = {key: [t.transpose(1, 2) for t in x] for key, x in job(ROWS, (4, 5)).items()}
    consume(strided)


# Growth


def test_the_seed_job_grows_by_nothing(cuda: None) -> None:
    for _ in range(3):
        fresh()
        features = seed_job()
        want = oracle(features)
        flat, rose = measured(lambda f=features: goflat.flatten_(f, max_growth=0))
        assert rose == {"requested": 0, "allocated": 0, "reserved": 0}
        assert flat.plan.in_place == 4
        check_bits(flat, want)
        again = {"all": list(flat)}
        flat.clear()
        joined, rose = measured(lambda f=again: goflat.flatten_(f, max_growth=0))
        assert rose == {"requested": 0, "allocated": 0, "reserved": 0}
        check_bits(joined, want)
        del joined


def test_parts_of_one_tensor_grow_by_nothing(cuda: None) -> None:
    for order in (None, 1):
        features = parts([[370, 10, 600], [0, 555, 90], [81, 40, 330]], (256, 7), order=order)
        want = oracle(features)
        flat, rose = measured(lambda f=features: goflat.flatten_(f, max_growth=0))
        assert rose == {"requested": 0, "allocated": 0, "reserved": 0}
        check_bits(flat, want)
        del flat


HOLDS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda t: t,
    "view": lambda t: t[:1],
    "alias": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
}


def random_consumable(seed: int) -> tuple[Features, list[Any], list[Tensor]]:
    """Return a ragged job, what holds some of its entries, and the bytes those must keep."""
    r = random.Random(seed)
    keys, batches = r.randint(1, 5), r.randint(1, 5)
    cols = r.choice((1, 7, 64, 256 * 7 * 7))
    most = min(4000, 8 * MIB // (4 * cols))
    features: Features = {str(k): [] for k in range(keys)}
    for line in features.values():
        for _ in range(batches):
            line.append(bits((r.randint(0, most), cols)))
            if r.random() < 0.2:
                torch.empty(r.randint(1, 4 * MIB), dtype=torch.uint8, device=DEVICE)
    kept, copies = [], []
    for line in features.values():
        for i in range(batches):
            if r.random() < 0.1 and len(line[i]):
                kept.append(HOLDS[r.choice(list(HOLDS))](line[i]))
                copies.append(seen(kept[-1]))
    return features, kept, copies


def seen(thing: Any) -> Tensor:
    if isinstance(thing, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(thing).clone()
    return raw(thing).clone()


def slack(features: Features) -> int:
    """Return how far allocated bytes may be from requested ones: blocks are not split finely."""
    sizes = [t.nbytes for t in entries(features)]
    outs = [sum(t.nbytes for t in column) for column in zip(*features.values(), strict=True)]
    return sum(MIB if n >= MIB else 512 for n in sizes + outs)


def predictions(seeds: range) -> None:
    for seed in seeds:
        fresh()
        features, kept, copies = random_consumable(seed)
        want, room = oracle(features), slack(features)
        planned = goflat.plan(features, inplace=True)
        flat, rose = measured(lambda f=features: goflat.flatten_(f, max_growth=LOTS))
        assert flat.plan.growth == planned.growth == rose["requested"], f"{seed}: {planned}"
        assert abs(rose["allocated"] - rose["requested"]) <= room, f"{seed}: {planned}"
        assert rose["reserved"] <= planned.reserved_growth, f"{seed}: {planned}"
        check_bits(flat, want)
        for thing, copy in zip(kept, copies, strict=True):
            assert torch.equal(seen(thing), copy), f"{seed}: what is held has changed"
        del flat, kept, copies, want, features


# 200 more of each kind are part of the benchmark: python -m goflat bench --memory
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_jobs_grow_as_predicted(first: int, cuda: None) -> None:
    predictions(range(first, first + 10))


def test_under_expandable_segments(cuda: None) -> None:
    run(
        "from gpu.test_consume import predictions; predictions(range(300, 310))",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )


def test_collected_jobs_grow_by_nothing(cuda: None) -> None:
    for seed in range(400, 415):
        fresh()
        with goflat.collect():
            features, kept, copies = random_consumable(seed)
            del kept, copies
        want = oracle(features)
        flat, rose = measured(lambda f=features: goflat.flatten_(f, max_growth=0))
        assert (flat.plan.growth, rose["requested"]) == (0, 0), seed
        check_bits(flat, want)
        check_bits([out.clone() for out in flat], want)
        del flat, want


def test_max_growth_leaves_everything(cuda: None) -> None:
    features = job([[300, 700], [900, 500]], (256, 7, 7))
    want, kept = oracle(features), features["1"][0]
    planned = goflat.plan(features, inplace=True)
    assert planned.growth > 0  # type: ignore[operator]
    try:
        goflat.flatten_(features, max_growth=planned.growth - 1)  # type: ignore[operator]
    except goflat.MemoryLimitError as error:
        assert "variable 'kept'" in str(error)
        check_bits(goflat.flatten_(features, max_growth=planned.growth), want)  # type: ignore[arg-type]
    else:
        raise AssertionError("no error")
    del kept


def outside_of_torch() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def tables() -> None:
    """Run in a child: goflat takes no more of the device than the plan says."""
    goflat.flatten_(parts([[3, 2], [1, 4]]), max_growth=0)  # kernels are loaded
    features = parts([[64] * 64] * 512, (16,), order=1)
    torch.cuda.synchronize()
    before = outside_of_torch()
    flat = goflat.flatten_(features, max_growth=0)
    torch.cuda.synchronize()
    least = -(-flat.plan.tables // (2 * MIB)) * 2 * MIB
    assert outside_of_torch() - before <= least, flat.plan
    assert sum(goflat.memory().values()) <= least


def test_tables_are_all_that_goflat_takes(cuda: None) -> None:
    run("from gpu.test_consume import tables; tables()")


# What results can do


def results() -> dict[str, Callable[[], Features]]:
    """Return jobs whose outputs are foreign, inside one storage, and allocated."""
    return {
        "over several storages": seed_job,
        "inside one storage": lambda: parts([[50, 30], [9, 70]], (256, 7), order=1),
        "allocated": lambda: job([[300, 700], [900, 500]], (256, 7, 7)),
    }


@pytest.mark.parametrize("name", results())
def test_results_survive(name: str, cuda: None) -> None:
    fresh()
    flat = consume(results()[name]())
    out = flat[1]
    want = [raw(out).clone()]
    check_bits([raw(out.clone())], want)
    check_bits([raw(torch.empty_like(out).copy_(out))], want)
    check_bits([raw(out.cpu().to(DEVICE))], want)
    check_bits([raw(torch.from_dlpack(out))], want)
    file = io.BytesIO()
    torch.save(out, file)
    file.seek(0)
    check_bits([raw(torch.load(file))], want)
    host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
    host.copy_(out, non_blocking=True)
    wait()
    check_bits([raw(host.to(DEVICE))], want)
    out.copy_(torch.ones(out.shape), non_blocking=True)
    assert bool((out == 1).all())
    out.mul_(2).requires_grad_()
    (out * 3).sum().backward()
    assert bool((out.grad == 3).all())
    del flat
    torch.cuda.empty_cache()
    junk = [torch.full((1 << 20,), 7.0, device=DEVICE) for _ in range(50)]
    assert bool((out == 2).all())
    del junk


def test_memory_goes_back_with_results(cuda: None) -> None:
    fresh()
    before = torch.cuda.memory_allocated()
    for make in results().values():
        flat = consume(make())
        last = flat.pop()
        del flat
        wait()
        assert torch.cuda.memory_allocated() - before >= last.nbytes
        del last
        gc.collect()
        assert torch.cuda.memory_allocated() == before


# Streams


def test_streams_to_wait_for(cuda: None) -> None:
    """A stream that reads entries late is named, and reads what was there."""
    side = torch.cuda.Stream()
    for make in (seed_job, lambda: parts([[500, 300], [90, 700]], (256, 7), order=1)):
        features = make()
        want = [raw(t.contiguous()).clone() for t in entries(features)]
        wait()
        with torch.cuda.stream(side):
            sleep(100)
            copies = [raw(t.contiguous()).clone() for t in entries(features)]
        goflat.flatten_(features, max_growth=0, wait=[side]).clear()
        junk = [torch.full((5 << 20,), 7.0, device=DEVICE) for _ in range(4)]
        wait()
        check_bits(copies, want)
        del junk


def test_the_host_does_not_wait(cuda: None) -> None:
    consume(seed_job())
    features = seed_job()
    wait()
    sleep(500)
    stream = torch.cuda.current_stream()
    flat = goflat.flatten_(features, max_growth=0)
    assert not stream.query(), "the stream has been waited for"
    wait()
    del flat


def test_another_stream_than_that_of_the_entries(cuda: None) -> None:
    """Memory that the move still needs is not given to the stream that it belongs to."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for make in results().values():
        fresh()
        features = make()
        want = oracle(features)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            sleep(100)
            flat = goflat.flatten_(features, max_growth=LOTS)
            copies = [out.clone() for out in flat]
            flat.clear()
        junk = [torch.full((5 << 20,), 7.0, device=DEVICE) for _ in range(10)]
        wait()
        check_bits(copies, want)
        del junk, copies


def test_record_stream(cuda: None) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for make in results().values():
        fresh()
        flat = consume(make())
        want = [raw(out).clone() for out in flat]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            sleep(100)
            copies = [out.clone() for out in flat]
        goflat.record_stream(flat, side)
        flat.clear()
        junk = [torch.full((5 << 20,), 7.0, device=DEVICE) for _ in range(10)]
        wait()
        check_bits([raw(copy) for copy in copies], want)
        del junk, copies


# Graphs


def test_capture_copies(cuda: None) -> None:
    features = seed_job()
    kept = entries(features)
    again = {key: list(line) for key, line in features.items()}
    goflat.flatten(features)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flat = goflat.flatten_(features, max_growth=LOTS)
    assert (flat.plan.strategy, features) == ("copy", {})
    for _ in range(3):
        refill(again)
        graph.replay()
        wait()
        check_bits(flat, oracle(again))
    del kept


# Failures


@pytest.fixture
def capped(cuda: None) -> Iterator[Callable[[int], None]]:
    """Let torch's allocator reserve only so many bytes more."""
    total = torch.cuda.get_device_properties(0).total_memory

    def cap(more: int) -> None:
        wait()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    yield cap
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_out_of_memory_at_the_first_spill(capped: Callable[[int], None]) -> None:
    fresh()
    features = job([[700, 900], [800, 600]], (256, 7, 7))  # tens of MB each, none adjoins
    want = oracle(features)
    assert goflat.plan(features, inplace=True).in_place == 0
    fresh()
    capped(2 * MIB)
    with pytest.raises(goflat.OutOfMemoryError, match="allocate") as caught:
        goflat.flatten_(features, max_growth=LOTS)
    assert caught.value.outputs == [None, None]  # type: ignore[attr-defined]
    assert all(t is not None for t in entries(features))
    torch.cuda.set_per_process_memory_fraction(1.0)
    check_bits(goflat.flatten_(features, max_growth=LOTS), want)


def test_out_of_memory_at_a_later_spill(capped: Callable[[int], None]) -> None:
    fresh()
    features = job([[300, 900], [200, 1100]], (256, 7, 7))
    want = oracle(features)
    fresh()
    capped(600 * 256 * 49 * 4)  # for one of 500 rows, not for one of 2000
    with pytest.raises(goflat.OutOfMemoryError) as caught:
        goflat.flatten_(features, max_growth=LOTS)
    torch.cuda.set_per_process_memory_fraction(1.0)
    outputs = caught.value.outputs  # type: ignore[attr-defined]
    for b, out in enumerate(outputs):
        column = [line[b] for line in features.values()]
        assert (out is None) == all(t is not None for t in column)
        if out is not None:
            check_bits([out], [want[b]])
    left = {key: [t for t in line if t is not None] for key, line in features.items()}
    features.clear()
    del column
    rest = [b for b, out in enumerate(outputs) if out is None]
    check_bits(goflat.flatten_(left, max_growth=LOTS), [want[b] for b in rest])


def accumulate() -> None:
    """Run in a child: a loop, then one cat under a cap that twice the data does not fit under."""
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(4 * GIB / total)
    with goflat.collect():
        made = [
            torch.full((256, 1024), i % 7, dtype=torch.half, device=DEVICE) for i in range(5005)
        ]
    joined = goflat.cat_(made, max_growth=0)
    assert joined.shape == (5005 * 256, 1024)
    assert bool((joined[::256, 0] == torch.arange(5005, device=DEVICE) % 7).all())
    assert bool((joined[255::256, -1] == torch.arange(5005, device=DEVICE) % 7).all())


def test_accumulate_then_cat_under_a_cap(large: None) -> None:
    run("from gpu.test_consume import accumulate; accumulate()")
