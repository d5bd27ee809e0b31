"""Who uses memory of the GPU, and outputs over several allocations of it."""

from __future__ import annotations

import gc
import io
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native, _ownership, _streams
from goflat._ownership import ADOPTABLE, FOREIGN, HELD, IS_ADOPTED, SAVED, SHARED, STORAGE
from gpu.support import DEVICE, bits, raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("cuda")
ROWS, WIDTH = 1200, 512  # 2.4 MiB, several of which share one of torch's segments


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    assert _ownership.meet()
    yield
    assert _native._core.bridge_LiveAdopted() == 0  # type: ignore[union-attr]


def reasons(entries: list[Any], expected: int = 0) -> list[int]:
    return [record.reason for record in _ownership.survey(entries, expected)]


def neighbours() -> list[Tensor]:
    """Return two tensors whose memory adjoins, in one segment of the allocator."""
    gc.collect()
    torch.cuda.empty_cache()
    tensors = sorted((bits((ROWS, WIDTH)) for _ in range(8)), key=lambda t: t.data_ptr())
    segments = [
        range(s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot()
    ]
    for a, b in pairwise(tensors):
        inside = any(a.data_ptr() in s and b.data_ptr() in s for s in segments)
        if inside and b.data_ptr() == a.data_ptr() + a.nbytes:
            return [a, b]
    raise AssertionError("no two of 8 tensors adjoin")


def adopt(entries: list[Tensor]) -> Tensor:
    """Return one output over two entries."""
    made: list[Tensor] = []
    shape = (2 * ROWS, WIDTH)
    core: Any = _native._core
    address = entries[0].data_ptr()
    core.bridge_Adopt(address, id(shape), id(entries[0]), id(entries), 0, 0, 0, id(made))
    return made[0]


def test_counts_are_read_in_place() -> None:
    assert _ownership.is_quick()


def test_reasons() -> None:
    held, aliased, wrapped, saved, base = (bits((4, 3)) for _ in range(5))
    leaf = torch.ones(3, device=DEVICE, requires_grad=True)
    loss = leaf * saved
    alias, storage = aliased.detach(), wrapped.untyped_storage()
    conv = torch.nn.functional.conv1d(bits((2, 3, 5)).nan_to_num(), bits((4, 3, 1)).nan_to_num())
    entries = [bits((4, 3)), conv, held, aliased, wrapped, saved, *base.split(2)]
    entries.append(torch.from_dlpack(bits((4, 3))))
    del conv, aliased, wrapped, saved
    want = [ADOPTABLE, ADOPTABLE, HELD, SHARED, STORAGE, SAVED, SHARED, SHARED, FOREIGN]
    assert reasons(entries) == want
    del held, alias, storage, loss, base
    assert reasons(entries) == [ADOPTABLE] * 8 + [FOREIGN]
    record = _ownership.survey(entries)[0]
    assert (record.device_type, record.address, record.storage_bytes) == (
        2,
        entries[0].data_ptr(),
        48,
    )


def test_where_memory_comes_from() -> None:
    """From another stream, a pool, a graph's pool: it is torch's all the same."""
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
        entries = [bits((4, 3))]
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        entries.append(torch.ones(5, device=DEVICE))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        entries.append(torch.ones(5, device=DEVICE))
    entries.append(torch.empty(0, 3, device=DEVICE))
    assert reasons(entries) == [ADOPTABLE] * 4


def test_an_output_over_two_allocations() -> None:
    entries = neighbours()
    want = torch.cat([t.cpu() for t in entries])
    used = torch.cuda.memory_allocated(DEVICE)
    out = adopt(entries)
    entries.clear()
    assert torch.cuda.memory_allocated(DEVICE) == used
    saved = io.BytesIO()
    torch.save(out, saved)
    saved.seek(0)
    copies = [
        out.cpu(),
        out.clone(),
        torch.empty_like(out).copy_(out),
        torch.load(saved),
        torch.from_dlpack(out),
    ]
    assert all(raw(copy).cpu().equal(raw(want)) for copy in copies)
    assert raw(out.copy_(want)).cpu().equal(raw(want))  # from the host
    again = [out]
    del out, copies
    assert [record[-2:] for record in _ownership.survey(again)] == [(IS_ADOPTED, ADOPTABLE)]
    second = adopt([again[0], again[0]])
    again.clear()
    assert raw(second).cpu().equal(raw(want))
    del second
    gc.collect()
    assert torch.cuda.memory_allocated(DEVICE) < used


def test_record_stream_reaches_the_allocations() -> None:
    entries = neighbours()
    out = adopt(entries)
    entries.clear()
    lo, hi = out.data_ptr(), out.data_ptr() + out.nbytes
    side = torch.cuda.Stream(DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # about a second
    goflat.record_stream(out, side)
    del out
    taken = [torch.empty(ROWS, WIDTH, device=DEVICE) for _ in range(8)]
    assert not any(lo <= t.data_ptr() < hi for t in taken)
    assert not side.query()  # so that the test means something
    torch.cuda.synchronize()


def test_dropped_in_a_thread() -> None:
    outs = [adopt(neighbours())]
    thread = threading.Thread(target=outs.clear)
    thread.start()
    thread.join()
    assert _streams.under(torch.ones(1, device=DEVICE))
