"""out=: filled in place or refused, and nothing is written before all is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job, numpy_job, oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def outs() -> list[torch.Tensor]:
    """Return outs that fit `ragged()`."""
    return [torch.full((5, 3), -1.0), torch.full((7, 3), -1.0)]


def refused(error: type[goflat.Error], features: Any, out: Any, **options: Any) -> goflat.Error:
    """Assert that the call raises `error` and leaves every array of `out` as it was."""
    arrays = out if isinstance(out, list) else [out]
    before = [copied(array) for array in arrays]
    with pytest.raises(error) as caught:
        goflat.flatten(features, out=out, **options)
    for array, old in zip(arrays, before, strict=True):
        if old is not None:
            assert_bits(array.detach() if isinstance(array, torch.Tensor) else array, old)
    return caught.value


def copied(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return None if array.is_meta or array.is_sparse else array.detach().clone()
    return array.copy() if isinstance(array, np.ndarray) else None


def test_outs_are_filled_and_returned_themselves() -> None:
    given = outs()
    places = [out.data_ptr() for out in given]
    flat = goflat.flatten(ragged(), out=given)
    assert all(a is b for a, b in zip(flat, given, strict=True))
    assert [out.data_ptr() for out in flat] == places
    assert_all_bits(flat, oracle(ragged()))
    assert flat.layout == goflat.Layout.of(ragged())


def test_outs_in_a_tuple() -> None:
    assert_all_bits(goflat.flatten(ragged(), out=tuple(outs())), oracle(ragged()))


def test_cat_out() -> None:
    out = torch.empty(3, 3)
    assert goflat.cat([tensor((2, 3)), tensor((1, 3))], out=out) is out
    assert_bits(out, torch.cat([tensor((2, 3)), tensor((1, 3))]))


@pytest.mark.parametrize("dim", [0, 1])
def test_strided_outs_are_filled_in_place_and_neighbours_stay(dim: int) -> None:
    features = job([[2, 1], [1, 3]], row_shape=(4,), dim=dim)
    want = oracle(features, dim)
    whole = [torch.full((2 * t.shape[0] + 1, 3 * t.shape[1] + 2), -1.0) for t in want]
    given = [w[1::2, 1:-1:3] for w in whole]
    strides = [out.stride() for out in given]
    flat = goflat.flatten(features, dim=dim, out=given)
    assert [out.stride() for out in flat] == strides
    assert_all_bits([out.contiguous() for out in flat], want)
    for w, out in zip(whole, given, strict=True):
        out.fill_(-1)
        assert (w == -1).all()


def test_outs_of_every_layout() -> None:
    features = job([[2], [3]], row_shape=(4, 6))
    (want,) = oracle(features)
    for out in (
        torch.zeros(6, 4, 5).permute(2, 1, 0),
        torch.zeros(4, 6, 5).permute(2, 0, 1),
        torch.zeros(5, 6, 4).transpose(1, 2),
        torch.zeros(5, 8, 12)[:, ::2, 1::2],
    ):
        before = out.stride()
        (got,) = goflat.flatten(features, out=[out])
        assert got.stride() == before
        assert_bits(got.contiguous(), want)


def test_odd_strides_of_size_one_dims() -> None:
    raw = torch.zeros(500)
    for shape in (1, 1, 1), (1, 5, 1), (3, 1, 2), (1, 3, 2), (3, 2, 1):
        for dim in range(3):
            parts = [tensor(shape), tensor(shape, seed=1)]
            want = torch.cat(parts, dim)
            strides = [99 if n == 1 else s for n, s in zip(want.shape, want.stride(), strict=True)]
            out = raw.zero_().as_strided(want.shape, strides)
            goflat.cat(parts, dim, out=out)
            assert_bits(out, want)
            goflat.cat(parts[:1], dim, out=raw.zero_().as_strided(shape, (99, 98, 97)))
            assert_bits(raw.as_strided(shape, (99, 98, 97)), parts[0])


def test_channels_last_out_with_channels_last_entries_and_the_other_way() -> None:
    features = job([[2], [3]], row_shape=(3, 4, 5))
    (want,) = oracle(features)
    last = {
        key: [t.to(memory_format=torch.channels_last) for t in entries]
        for key, entries in features.items()
    }
    for source in features, last:
        for out in want.clone().zero_(), want.to(memory_format=torch.channels_last).zero_():
            before = out.stride()
            goflat.flatten(source, out=[out])
            assert out.stride() == before
            assert_bits(out.contiguous(), want)


def test_empty_outs() -> None:
    features = {"a": [torch.empty(0, 3)], "b": [torch.empty(0)]}
    out = torch.empty(0, 3)
    assert goflat.flatten(features, out=[out])[0] is out


def test_legacy_batch_wants_a_legacy_out() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))]}
    assert_bits(
        goflat.flatten(features, out=[torch.empty(0), torch.empty(2, 3)])[0], torch.empty(0)
    )
    refused(goflat.ShapeError, features, [torch.empty(0, 3), torch.empty(2, 3)])


def test_misaligned_out() -> None:
    raw = torch.zeros(4 * 15 + 8, dtype=torch.uint8)
    for offset in range(0, 8, 4):
        out = raw[offset : offset + 60].view(torch.float32).reshape(5, 3)
        goflat.flatten({k: v[:1] for k, v in ragged().items()}, out=[out])
        assert_bits(out, oracle(ragged())[0])


# Wrong outs


def test_wrong_number() -> None:
    for given in [], outs()[:1], [*outs(), torch.empty(1, 3)]:
        error = refused(goflat.ShapeError, ragged(), given)
        assert str(error) == f"got {len(given)} outputs, want 2, one per batch"


@pytest.mark.parametrize("shape", [(8, 3), (6, 3), (7, 4), (7,), (7, 3, 1), (1, 7, 3), (0,)])
def test_wrong_shape_is_never_resized(shape: tuple[int, ...]) -> None:
    given = [outs()[0], torch.full(shape, -1.0)]
    error = refused(goflat.ShapeError, ragged(), given)
    assert (error.key, error.batch) == (None, 1)
    assert (error.got, error.want) == (f"out of shape {shape}", "(7, 3)")
    assert given[1].shape == shape


def test_wrong_dtype() -> None:
    error = refused(goflat.DTypeError, ragged(), [outs()[0], outs()[1].double()])
    assert (error.batch, error.got, error.want) == (1, "out of float64", "float32")


def test_dtype_option_decides_the_dtype_of_outs() -> None:
    refused(goflat.DTypeError, ragged(), outs(), dtype=torch.float64)
    flat = goflat.flatten(ragged(), out=[t.double() for t in outs()], dtype=torch.float64)
    assert_all_bits(flat, [t.double() for t in oracle(ragged())])


def test_wrong_device() -> None:
    error = refused(goflat.DeviceError, ragged(), [outs()[0], outs()[1].to("meta")])
    assert error.batch == 1


def test_wrong_type() -> None:
    refused(goflat.DTypeError, ragged(), [outs()[0], outs()[1].numpy()])
    refused(goflat.DTypeError, ragged(), [outs()[0], None])
    refused(goflat.DTypeError, numpy_job(ragged()), outs())
    refused(goflat.DTypeError, ragged(), torch.empty(5, 3))
    refused(goflat.DTypeError, ragged(), 3)


def test_sparse_out() -> None:
    refused(goflat.DTypeError, ragged(), [outs()[0], torch.zeros(7, 3).to_sparse()])


def test_out_with_the_conjugate_bit() -> None:
    features = {"a": [tensor((2, 3), torch.complex64)]}
    refused(goflat.OwnershipError, features, [torch.zeros(2, 3, dtype=torch.complex64).conj()])


def test_read_only_numpy_out() -> None:
    given = [out.numpy() for out in outs()]
    given[1].flags.writeable = False
    error = refused(goflat.OwnershipError, numpy_job(ragged()), given)
    assert error.batch == 1


def test_out_made_in_inference_mode() -> None:
    with torch.inference_mode():
        given = outs()
        goflat.flatten(ragged(), out=given)
    with pytest.raises(goflat.OwnershipError, match="inference"):
        goflat.flatten(ragged(), out=given)


def test_errors_of_later_batches_leave_earlier_outs_alone() -> None:
    features = ragged()
    features["2"][1] = tensor((2, 4))
    refused(goflat.ShapeError, features, outs())
    features["2"][1] = tensor((2, 3), torch.float64)
    refused(goflat.DTypeError, features, outs())


# Overlap


def test_out_is_an_input() -> None:
    t = tensor((5, 3))
    error = refused(goflat.OverlapError, {"a": [t]}, [t])
    assert error.batch == 0
    assert "key 'a', batch 0" in str(error)


def test_out_overlaps_an_input_partially() -> None:
    buffer = tensor((12, 3))
    refused(goflat.OverlapError, {"a": [buffer[:5]], "b": [buffer[7:]]}, [buffer[1:11]])
    refused(goflat.OverlapError, {"a": [buffer[:6]]}, [buffer[5:11]])


def test_out_overlaps_an_input_through_another_dtype_and_shape() -> None:
    buffer = tensor((10, 4))
    entry = buffer.view(torch.int32).reshape(40)[30:]
    refused(goflat.OverlapError, {"a": [entry]}, [buffer.view(torch.int32).reshape(40)[25:35]])


def test_out_that_interleaves_with_an_input_does_not_overlap() -> None:
    buffer = tensor((5, 6))
    want = buffer[:, 1::2].clone()
    goflat.flatten({"a": [buffer[:, 1::2]]}, out=[buffer[:, ::2]])
    assert_bits(buffer[:, ::2].contiguous(), want)
    refused(goflat.OverlapError, {"a": [buffer[:, ::2]]}, [buffer[:, :3]])


def test_out_beside_an_input_does_not_overlap() -> None:
    buffer = tensor((10, 3))
    want = buffer[:5].clone()
    goflat.flatten({"a": [buffer[:5]]}, out=[buffer[5:]])
    assert_bits(buffer[5:], want)


def test_out_overlaps_another_out() -> None:
    buffer = torch.zeros(11, 3)
    error = refused(goflat.OverlapError, ragged(), [buffer[:5], buffer[4:]])
    assert error.batch == 1
    same = torch.zeros(2, 3)
    refused(goflat.OverlapError, job([[2, 2]]), [same, same])


def test_outs_side_by_side_in_one_buffer() -> None:
    buffer = torch.zeros(12, 3)
    goflat.flatten(ragged(), out=[buffer[:5], buffer[5:]])
    assert_bits(buffer, torch.cat(oracle(ragged())))


def test_out_overlaps_itself() -> None:
    refused(goflat.OverlapError, job([[4]]), [torch.zeros(1, 3).expand(4, 3)])
    refused(goflat.OverlapError, job([[4]]), [torch.zeros(9).as_strided((4, 3), (2, 1))])


def test_numpy_overlap() -> None:
    buffer = np.zeros((12, 3), np.float32)
    refused(goflat.OverlapError, {"a": [buffer[:5]]}, [buffer[4:9]])
    refused(goflat.OverlapError, {"a": [buffer[4::-1]]}, [buffer[:5]])
    goflat.flatten({"a": [buffer[::2]]}, out=[buffer[1::2]])


def test_70_000_outs_are_checked_in_time() -> None:
    rows = torch.arange(70_000).reshape(-1, 1)
    target = torch.zeros(140_000, 1, dtype=torch.int64)
    goflat.flatten({"a": rows.split(1)}, out=target[::2].split(1))
    assert_bits(target[::2].contiguous(), rows)


# autograd


def test_out_that_requires_grad() -> None:
    given = [t.requires_grad_() for t in outs()]
    error = refused(goflat.OwnershipError, ragged(), given)
    assert error.batch == 0
    with torch.no_grad():
        goflat.flatten(ragged(), out=given)
    assert_all_bits([t.detach() for t in given], oracle(ragged()))


def test_entry_that_requires_grad() -> None:
    features = ragged()
    features["1"][1].requires_grad_()
    error = refused(goflat.OwnershipError, features, outs())
    assert (error.key, error.batch) == ("1", 1)
    with torch.no_grad():
        assert_all_bits(goflat.flatten(features, out=outs()), oracle(features))
