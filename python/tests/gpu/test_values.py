"""Bit for bit what torch.cat gives, whatever the entries look like."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    DTYPES,
    GIB,
    ROWS,
    VIEWS,
    bits,
    check,
    check_bits,
    entries,
    integers,
    job,
    need,
    oracle,
    random_job,
    raw,
    seed_job,
)

WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@pytest.mark.memcheck
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    features = job(ROWS, (3, 5), dtype)
    check(features, goflat.flatten(features))
    turned = {key: [t.transpose(0, 1) for t in line] for key, line in features.items()}
    check(turned, goflat.flatten(turned, dim=1), dim=1)
    packed = goflat.flatten(features, packed=True)
    check(features, packed)


@pytest.mark.memcheck
@pytest.mark.parametrize("start", range(0, 300, 30))
def test_random_jobs(start: int) -> None:
    for seed in range(start, start + 30):
        features, dim = random_job(seed)
        check(features, goflat.flatten(features, dim=dim), dim)


@pytest.mark.memcheck
@pytest.mark.parametrize("width", WIDTHS)
def test_every_pair_of_alignments(width: int) -> None:
    """Entries and outputs whose first bytes lie anywhere, neighbours untouched."""
    dtype, places, cols = WIDTHS[width], range(max(1, 16 // width)), 33
    for source in places:
        base = [bits((n * cols + 16,), dtype) for n in (1, 8, 0, 30)]
        parts = [t[source : source + len(t) - 16].view(-1, cols) for t in base]
        features = {str(k): [part] for k, part in enumerate(parts)}
        (want,) = oracle(features)
        for target in places:
            hay = bits((want.numel() + 64,), dtype)
            expected = integers(hay).clone()
            expected[32 + target :][: want.numel()] = want.view(-1)
            out = hay[32 + target :][: want.numel()].view(want.shape)
            goflat.flatten(features, out=[out])
            check_bits([hay], [expected])


@pytest.mark.memcheck
@pytest.mark.parametrize("dim", range(-4, 4))
@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, dim: int) -> None:
    make, shape = VIEWS[view], [3, 4, 5, 2]

    def entry(rows: int) -> torch.Tensor:
        extents = list(shape)
        extents[dim] = rows
        return make(extents, torch.float32)

    features = {"a": [entry(3), entry(1)], "b": [entry(0), entry(6)], "c": [entry(2), entry(2)]}
    check(features, goflat.flatten(features, dim=dim), dim)


@pytest.mark.memcheck
def test_conjugate_and_negative_views() -> None:
    whole = torch.view_as_complex(torch.rand(5, 3, 2, device=DEVICE))
    for part in (whole.conj(), whole.conj().imag, torch._neg_view(whole.real)):
        assert part.is_conj() or part.is_neg()
        features = {"a": [part], "b": [part[1:3]], "c": [part.clone()]}
        flat = goflat.flatten(features)
        assert not flat[0].is_conj()
        assert not flat[0].is_neg()
        assert torch.equal(flat[0], torch.cat([t for (t,) in features.values()]))


@pytest.mark.memcheck
def test_one_layout_of_each_kind_in_a_job() -> None:
    makers = list(VIEWS.values())
    features = {str(k): [make([2, 3, 4, 5], torch.int16)] * 2 for k, make in enumerate(makers)}
    check(features, goflat.flatten(features))


@pytest.mark.memcheck
@pytest.mark.parametrize("row_bytes", [1, 3, 4, 15, 16, 17, 196, 511, 512, 513, 4096, 50_176])
def test_sizes(row_bytes: int) -> None:
    """Entries around the sizes at which one kernel takes over from another."""
    rows = [[0, 1, 2, 7], [1, 0, 3, 8], [32, 33, 31, 1]]
    features = job(rows, (row_bytes,), torch.uint8)
    check(features, goflat.flatten(features))


def test_seed_job_and_containers() -> None:
    features = seed_job()
    check(features, goflat.flatten(features))
    check(features, goflat.flatten(OrderedDict(features)))
    check(features, goflat.flatten({key: tuple(line) for key, line in features.items()}))
    by_batch = [{key: features[key][b] for key in features} for b in range(4)]
    check(features, goflat.flatten(by_batch))
    column = [line[1] for line in features.values()]
    check_bits([goflat.cat(column)], oracle(features)[1:2])


@pytest.mark.memcheck
def test_one_tensor_many_times() -> None:
    t = bits((5, 7))
    features = {str(k): [t, t] for k in range(9)}
    check(features, goflat.flatten(features))


@pytest.mark.memcheck
def test_parameters() -> None:
    features = {key: [torch.nn.Parameter(t, False) for t in x] for key, x in job().items()}
    check(features, goflat.flatten(features))
    with torch.no_grad():
        features = {key: [torch.nn.Parameter(t) for t in x] for key, x in job().items()}
        check(features, goflat.flatten(features))


@pytest.mark.memcheck
def test_empty_entries() -> None:
    features = job([[0, 0], [0, 0]], (4,))
    flat = goflat.flatten(features)
    assert [tuple(out.shape) for out in flat] == [(0, 4), (0, 4)]
    check(features, flat)
    features = job([[0, 2], [3, 0], [0, 0]], (4,))
    check(features, goflat.flatten(features))
    no_columns = job(ROWS, (0, 5))
    check(no_columns, goflat.flatten(no_columns))


def test_no_entries(any_engine: None) -> None:
    assert goflat.flatten({}) == []
    assert goflat.flatten({"a": []}) == []


@pytest.mark.memcheck
def test_legacy_empty_entries_are_skipped(any_engine: None) -> None:
    nothing, two = torch.empty(0, device=DEVICE), bits((2, 3))
    features = {"a": [nothing, two], "b": [two, nothing], "c": [two, nothing]}
    for packed in False, True:
        flat = goflat.flatten(features, packed=packed)
        check_bits(flat, [integers(torch.cat([two, two])), integers(two)])
    (out,) = goflat.flatten({"a": [nothing], "b": [nothing]})
    assert tuple(out.shape) == (0,)
    assert out.device == nothing.device


@pytest.mark.parametrize("form", ["batches", "keys", "square"])
def test_more_than_65535(form: str) -> None:
    """Batches, keys and both, beyond what a grid dimension of CUDA takes."""
    keys, batches = {"batches": (1, 70_000), "keys": (70_000, 1), "square": (70, 1000)}[form]
    base = bits((keys * batches, 3), torch.int32)
    parts = list(base.split(1))
    features = {k: parts[k * batches : (k + 1) * batches] for k in range(keys)}
    flat = goflat.flatten(features)
    want = base.view(keys, batches, 3).transpose(0, 1).reshape(-1, 3)
    assert len(flat) == batches
    check_bits([torch.cat(list(flat))], [want])
    packed = goflat.flatten(features, packed=True)
    assert packed.buffer is not None
    check_bits([packed.buffer], [want])


LARGE = {
    "2^31 elements": ((2**30 + 3,), torch.uint8, 3, 0),
    "2^32 bytes": ((2**28 + 3, 1), torch.int32, 5, 0),
    "rows x row bytes": ((2**17 + 1, 8193), torch.int32, 2, 0),
    "2^32 bytes along dim 1": ((2**16 + 1, 2**15 + 1), torch.int16, 2, 1),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("strided", [False, True])
def test_offsets_beyond_32_bits(large: None, name: str, strided: bool) -> None:
    shape, dtype, keys, dim = LARGE[name]
    need(40 * GIB)
    wide = (*shape[:-1], 2 * shape[-1])
    base = [bits(wide if strided else shape, dtype) for _ in range(keys)]
    parts = [t[..., ::2] if strided else t for t in base]
    for k, part in enumerate(parts):
        part.select(dim, -1).fill_(k + 1)  # the last rows are where offsets overflow
    (out,) = goflat.flatten({k: [part] for k, part in enumerate(parts)}, dim=dim)
    at = 0
    for k, part in enumerate(parts):
        piece = out.narrow(dim, at, part.shape[dim])
        assert torch.equal(piece, part), f"key {k}"
        assert bool((piece.select(dim, -1) == k + 1).all())
        at += part.shape[dim]


def test_large_strided_outputs(large: None) -> None:
    """Byte offsets inside an output go beyond 32 bits, too."""
    need(40 * GIB)
    shape = (2**15 + 1, 2**15)
    features = {k: [bits(shape, torch.int16)] for k in range(2)}
    buffer = torch.zeros(2 * shape[0], 2 * shape[1], dtype=torch.int16, device=DEVICE)
    goflat.flatten(features, out=[buffer[:, 1::2]])
    assert torch.equal(buffer[: shape[0], 1::2], features[0][0])
    assert torch.equal(buffer[shape[0] :, 1::2], features[1][0])
    assert not bool(buffer[:, ::2].any())


# ---- devices ----


def test_a_batch_on_two_devices_raises_before_any_work(cuda: None) -> None:
    features = job()
    features["1"][1] = features["1"][1].cpu()
    outs = [bits(t.shape) for t in oracle(job())]
    copies, before = clones(outs), torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    for options in ({}, {"packed": True}, {"out": outs}):
        with pytest.raises(goflat.DeviceError, match="key '1', batch 1: got cpu, want cuda:0"):
            goflat.flatten(features, **options)
    assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == before
    check_bits(outs, copies)


def clones(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.clone() for t in tensors]


def test_batches_on_cpu_and_gpu(cuda: None, any_engine: None) -> None:
    features = {key: [line[0], line[1].cpu()] for key, line in job().items()}
    check(features, goflat.flatten(features))
    with pytest.raises(goflat.DeviceError):
        goflat.flatten(features, packed=True)


def test_pinned_memory_is_the_cpus(cuda: None) -> None:
    features = {key: [t.cpu().pin_memory() for t in x] for key, x in job().items()}
    check(features, goflat.flatten(features))


# ---- options ----


@pytest.mark.memcheck
def test_dtype_converts_first() -> None:
    features = {"a": [torch.ones(2, 3, device=DEVICE, dtype=torch.int32)], "b": [bits((1, 3))]}
    with pytest.raises(goflat.DTypeError, match="key 'b', batch 0"):
        goflat.flatten(features)
    (out,) = goflat.flatten(features, dtype=torch.float64)
    assert out.dtype is torch.float64
    want = torch.cat([features["a"][0].double(), features["b"][0].double()])
    check_bits([out], [want])


@pytest.mark.memcheck
@pytest.mark.parametrize("dim", [0, 1])
def test_packed(dim: int) -> None:
    features = job(ROWS, (3, 5), dim=dim)
    flat = goflat.flatten(features, dim=dim, packed=True)
    check(features, flat, dim)
    assert flat.buffer is not None
    check_bits([flat.buffer], [torch.cat(oracle(features, dim), dim)])
    flat[0].zero_()  # tensors of their own over one buffer
    assert not raw(flat.buffer.narrow(dim, 0, flat[0].shape[dim]).contiguous()).any()
    assert flat[1].untyped_storage().data_ptr() == flat.buffer.untyped_storage().data_ptr()


@pytest.mark.memcheck
def test_unflatten_and_offsets() -> None:
    features = job()
    flat = goflat.flatten(features)
    parts = flat.unflatten()
    check_bits(entries(dict(parts)), [integers(t) for t in entries(features)])
    offsets = flat.offsets(1, device=DEVICE)
    assert offsets.tolist() == [0, 1, 5, 7]
    assert offsets.device.type == DEVICE.type
    assert flat.layout.devices == (entries(features)[0].device,) * 2


def test_errors_name_the_entry() -> None:
    def job_with(entry: Any) -> dict[str, list[Any]]:
        features: dict[str, list[Any]] = {**job()}
        features["2"] = [features["2"][0], entry]
        return features

    with pytest.raises(goflat.ShapeError, match=r"key '2', batch 1: got \(2, 4\), want \(\*, 3\)"):
        goflat.flatten(job_with(bits((2, 4))))
    with pytest.raises(goflat.DTypeError, match="key '2', batch 1: got float16, want float32"):
        goflat.flatten(job_with(bits((2, 3), torch.float16)))
    with pytest.raises(goflat.DTypeError, match="key '2', batch 1"):
        goflat.flatten(job_with(bits((2, 3)).to_sparse()))
