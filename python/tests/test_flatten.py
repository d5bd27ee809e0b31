"""flatten and cat against the loop over torch.cat, bit for bit."""

from __future__ import annotations

import struct
from collections import OrderedDict, UserDict, deque
from types import MappingProxyType
from typing import Any

import pytest
import torch

import goflat
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import DTYPES, batch_major, job, oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def check(features: Any, dim: int = 0) -> goflat.Flat[torch.Tensor]:
    flat = goflat.flatten(features, dim=dim)
    assert_all_bits(flat, oracle(features, dim))
    return flat


def test_ragged_job() -> None:
    check(ragged())


def test_inputs_are_untouched_and_outputs_are_new() -> None:
    features = ragged()
    before = {key: [t.clone() for t in entries] for key, entries in features.items()}
    for output in goflat.flatten(features):
        output.fill_(7)
    for key, entries in features.items():
        assert_all_bits(entries, before[key])


def test_batch_major() -> None:
    features = ragged()
    assert_all_bits(goflat.flatten(batch_major(features)), oracle(features))


def test_batch_major_takes_the_key_order_of_the_first_batch() -> None:
    first = {"a": tensor((1, 3)), "b": tensor((2, 3), seed=1)}
    second = {"b": tensor((3, 3), seed=2), "a": tensor((4, 3), seed=3)}
    flat = goflat.flatten([first, second])
    assert_bits(flat[1], torch.cat([second["a"], second["b"]]))


@pytest.mark.parametrize(
    "wrap",
    [
        tuple,
        deque,
        lambda entries: MyList(entries),
    ],
    ids=["tuple", "deque", "list subclass"],
)
def test_other_sequences(wrap: Any) -> None:
    features = ragged()
    wrapped = {key: wrap(entries) for key, entries in features.items()}
    assert_all_bits(goflat.flatten(wrapped), oracle(features))


class MyList(list[torch.Tensor]):
    pass


@pytest.mark.parametrize("wrap", [OrderedDict, UserDict, MappingProxyType])
def test_other_mappings(wrap: Any) -> None:
    assert_all_bits(goflat.flatten(wrap(ragged())), oracle(ragged()))


def test_batch_major_in_a_tuple_of_other_mappings() -> None:
    features = tuple(MappingProxyType(batch) for batch in batch_major(ragged()))
    assert_all_bits(goflat.flatten(features), oracle(ragged()))


def test_ordered_dict_counts_move_to_end() -> None:
    features = OrderedDict(ragged())
    features.move_to_end("0")
    assert_bits(goflat.flatten(features)[0], torch.cat([features[k][0] for k in ("1", "2", "0")]))


def test_mapping_that_iterates_in_an_order_of_its_own() -> None:
    class Backwards(dict[str, Any]):
        def __iter__(self) -> Any:
            return iter(sorted(super().keys(), reverse=True))

        def items(self) -> Any:
            return [(key, self[key]) for key in self]

        def keys(self) -> Any:
            return list(self)

    features = Backwards(ragged())
    assert_bits(goflat.flatten(features)[0], torch.cat([features[k][0] for k in ("2", "1", "0")]))


def test_keys_that_are_no_strings() -> None:
    features = {0: [tensor((1, 3))], None: [tensor((2, 3), seed=1)], ("x", 2.5): [tensor((1, 3))]}
    assert check(features).layout.keys == (0, None, ("x", 2.5))


def test_same_tensor_twice_as_input() -> None:
    t = tensor((2, 3))
    check({"a": [t, t], "b": [t, t]})


# Nothing at all, and nearly nothing


@pytest.mark.parametrize("features", [{}, {"a": []}, {"a": [], "b": ()}, [], ()], ids=repr)
def test_no_batches_give_an_empty_list(features: Any) -> None:
    flat = goflat.flatten(features)
    assert flat == []
    assert isinstance(flat, goflat.Flat)


def test_all_entries_empty() -> None:
    flat = check({"a": [torch.empty(0, 4)], "b": [torch.empty(0, 4)]})
    assert flat[0].shape == (0, 4)


def test_row_shape_without_elements() -> None:
    check({"a": [torch.empty(2, 0, 3)], "b": [torch.empty(5, 0, 3)]})


def test_one_key_one_batch_one_row() -> None:
    check({"a": [tensor((1, 1))]})


def test_one_key_is_copied_not_aliased() -> None:
    t = tensor((4, 3))
    assert goflat.flatten({"a": [t]})[0].data_ptr() != t.data_ptr()


def test_legacy_empty_entries_are_skipped() -> None:
    check({"a": [torch.empty(0), tensor((2, 3))], "b": [tensor((1, 3)), torch.empty(0)]})


def test_legacy_empty_entries_are_skipped_along_another_dim() -> None:
    features = {"a": [torch.empty(0), tensor((2, 3))], "b": [tensor((2, 1)), torch.empty(0)]}
    with pytest.raises(goflat.ShapeError):
        goflat.flatten(features)
    check(features, dim=1)
    check(features, dim=-1)


def test_batch_of_nothing_but_legacy_entries() -> None:
    flat = check({"a": [torch.empty(0), tensor((2, 3))], "b": [torch.empty(0), tensor((1, 3))]})
    assert flat[0].shape == (0,)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_job_of_nothing_but_legacy_entries_takes_any_dim(dim: int) -> None:
    check({"a": [torch.empty(0)], "b": [torch.empty(0)]}, dim=dim)


def test_vectors() -> None:
    check(job([[2, 0], [3, 5]], row_shape=()))


# dim


@pytest.mark.parametrize("dim", range(-4, 4))
def test_every_dim(dim: int) -> None:
    check(job([[2, 0], [1, 5]], row_shape=(2, 3, 4), dim=dim % 4), dim=dim)


def test_dim_may_be_any_integer_type() -> None:
    torch_dim = torch.tensor(1)
    features = job([[2], [1]], row_shape=(2,), dim=1)
    assert_all_bits(goflat.flatten(features, dim=torch_dim), oracle(features, 1))


# dtypes


@pytest.mark.filterwarnings("ignore:B?Complex.* support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_torch(dtype: torch.dtype) -> None:
    check(job([[2, 1], [0, 4]], row_shape=(3, 5), dtype=dtype))


@pytest.mark.filterwarnings("ignore:B?Complex.* support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_torch_strided(dtype: torch.dtype) -> None:
    features = job([[2, 1], [0, 4]], row_shape=(3, 6), dtype=dtype)
    strided = {key: [t[:, :, ::2] for t in entries] for key, entries in features.items()}
    # torch.cat itself cannot copy strided uint1 to uint7: the oracle joins their bytes
    shell = dtype.itemsize == 1 and dtype is not torch.bool
    as_bytes = torch.uint8 if shell else dtype
    want = oracle({key: [t.view(as_bytes) for t in entries] for key, entries in strided.items()})
    assert_all_bits(goflat.flatten(strided), [t.view(dtype) for t in want])


def test_nan_payloads_and_signed_zeros_survive() -> None:
    bits = torch.tensor([0x7FC12345, 0x7F812345, -0x80000000, 0x00000001], dtype=torch.int32)
    check({"a": [bits.view(torch.float32)], "b": [bits.view(torch.float32)]})


def test_dtype_converts_first() -> None:
    features = {"a": [torch.arange(3)], "b": [torch.tensor([0.5, 1e30])]}
    flat = goflat.flatten(features, dtype=torch.float64)
    want = torch.cat([features["a"][0].double(), features["b"][0].double()])
    assert_bits(flat[0], want)
    assert flat.layout.dtype is torch.float64


def test_dtype_that_all_entries_have_already() -> None:
    assert_all_bits(goflat.flatten(ragged(), dtype=torch.float32), oracle(ragged()))


def test_dtype_of_no_batches() -> None:
    assert goflat.flatten({"a": []}, dtype=torch.float32) == []


# memory formats


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_misaligned_base(offset: int, dtype: torch.dtype) -> None:
    raw = tensor((4096,), torch.uint8)
    start = offset * max(1, dtype.itemsize // offset)
    a = raw[start : start + 40 * dtype.itemsize].view(dtype).reshape(10, 4)
    check({"a": [a], "b": [a[1:]], "c": [a[3:9]]})


def test_every_pair_of_alignments() -> None:
    raw, target = tensor((64,), torch.uint8), torch.zeros(128, dtype=torch.uint8)
    for src in range(16):
        for dst in range(16):
            parts = [raw[src : src + 17], raw[src + 3 : src + 24]]
            goflat.cat(parts, out=target[dst : dst + 38])
            assert_bits(target[dst : dst + 38], torch.cat(parts))


def test_odd_strides_of_size_one_dims() -> None:
    base = tensor((100,))
    a = base.as_strided((1, 4, 1), (77, 1, 13))
    b = base.as_strided((3, 4, 1), (4, 1, 99))
    check({"a": [a], "b": [b], "c": [a]})


def test_channels_last_gives_contiguous_outputs() -> None:
    features = {
        key: [t.to(memory_format=torch.channels_last) for t in entries]
        for key, entries in job([[2, 1], [3, 4]], row_shape=(3, 4, 5)).items()
    }
    flat = check(features)
    assert all(output.is_contiguous() for output in flat)


def test_channels_last_3d() -> None:
    t = tensor((2, 3, 4, 5, 6)).to(memory_format=torch.channels_last_3d)
    check({"a": [t], "b": [tensor((1, 3, 4, 5, 6))]})


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, ::2],
        lambda t: t[::2],
        lambda t: t[:1].expand(6, 6, 6),
        lambda t: t[:, :1, :1].expand(6, 6, 6),
        lambda t: t.flip(0)[1:],
        lambda t: t[1:, 1:, 1:],
        lambda t: t.unfold(0, 3, 2),
    ],
    ids=[
        "transposed",
        "permuted",
        "step 2 inside",
        "step 2 rows",
        "expanded rows",
        "expanded columns",
        "flipped",
        "cropped",
        "unfolded",
    ],
)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_views(view: Any, dim: int) -> None:
    a, b = view(tensor((6, 6, 6))), view(tensor((6, 6, 6), seed=1))
    check({"a": [a, b], "b": [b, b.contiguous()]}, dim=dim)


def test_many_dimensions() -> None:
    t = tensor((2,) * 10).permute(*reversed(range(10)))
    check({"a": [t], "b": [t[:1]]})


def test_conjugate_and_negative_views() -> None:
    z = tensor((3, 4), torch.complex64)
    check({"a": [z.conj()], "b": [z]})
    negative = z.conj().imag
    assert negative.is_neg()
    check({"a": [negative], "b": [z.imag]})
    check({"a": [z.resolve_conj().imag], "b": [negative]})


# sizes


def test_70_000_batches_of_one_row() -> None:
    rows = torch.arange(140_000, dtype=torch.int32).reshape(-1, 1).unbind()
    flat = goflat.flatten({"a": rows[:70_000], "b": rows[70_000:]})
    assert len(flat) == 70_000
    assert_bits(torch.stack(list(flat)), torch.stack(torch.arange(140_000).int().split(70_000), 1))


def test_70_000_keys() -> None:
    rows = torch.arange(70_000, dtype=torch.int32).reshape(-1, 1).unbind()
    flat = goflat.flatten(dict(enumerate([row] for row in rows)))
    assert_bits(flat[0], torch.arange(70_000, dtype=torch.int32))


def test_more_than_2_to_the_22_segments() -> None:
    column = torch.arange(2**23 + 2, dtype=torch.int16).reshape(-1, 2)[:, :1]
    check({"a": [column], "b": [column[:3]]})


def test_one_huge_entry_and_many_tiny_ones() -> None:
    tiny = tensor((1, 64)).expand(500, 64).split(1)
    check({"big": [tensor((20_000, 64))], **{str(i): [t] for i, t in enumerate(tiny)}})


# cat


def test_cat() -> None:
    parts = [tensor((2, 3)), torch.empty(0), tensor((0, 3)), tensor((4, 3), seed=1)]
    assert_bits(goflat.cat(parts), torch.cat(parts))


def test_cat_of_one() -> None:
    t = tensor((2, 3))
    assert_bits(goflat.cat([t]), t)
    assert goflat.cat((t,)).data_ptr() != t.data_ptr()


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_cat_along(dim: int) -> None:
    parts = [tensor((3, 3)), tensor((3, 3), seed=1)]
    assert_bits(goflat.cat(parts, dim), torch.cat(parts, dim))


def test_cat_with_dtype() -> None:
    parts = [torch.arange(2), torch.tensor([0.5])]
    assert_bits(goflat.cat(parts, dtype=torch.float32), torch.tensor([0.0, 1.0, 0.5]))


def test_helper_reports_the_first_difference() -> None:
    with pytest.raises(AssertionError, match=r"1 of 6 elements differ, first at \(1, 2\)"):
        assert_bits(torch.arange(6).reshape(2, 3), torch.tensor([[0, 1, 2], [3, 4, 6]]))
    assert struct.calcsize("q") == torch.int64.itemsize
