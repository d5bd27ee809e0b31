"""flatten_ and cat_: right outputs, empty containers, no growth where memory can be used again."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import weakref
from collections import OrderedDict, UserDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from goflat import _inplace, _native
from helpers import child, dynamo
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import apart, live, parts
from helpers.foreign import Standard
from helpers.jobs import DTYPES, batch_major, numpy_job, oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    Features = dict[str, list[Tensor]]

LOTS = 1 << 40
ROWS = ((2, 1), (0, 4), (3, 2))
native = pytest.mark.skipif(not _native.available(), reason="no extension")
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:BComplex32")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    if live() != (0, 0, 0):
        gc.collect()
    assert live() == (0, 0, 0)


@pytest.fixture(params=("native", "pure Python"))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the extension and without it."""
    if request.param == "native":
        if not _native.available():
            pytest.skip("no extension")
    else:
        monkeypatch.setattr(_native, "_core", None)
    return str(request.param)


def answer(features: Any) -> list[Tensor]:
    """Return what the call must give, in memory of its own."""
    return list(goflat.flatten(features))  # which is tested against torch.cat in test_flatten


def test_the_answer_is_that_of_torch_cat() -> None:
    assert_all_bits(answer(parts(ROWS)), oracle(parts(ROWS)))


def consume(features: Any, **options: Any) -> goflat.Flat[Any]:
    """Flatten, compare with torch.cat, assert that nothing is left in `features`."""
    want = answer(features)
    flat = goflat.flatten_(features, **{"max_growth": LOTS, **options})
    copies = answer({"": list(flat)}) if flat else []  # memory that NumPy has seen is foreign
    assert_all_bits(copies, want)
    assert len(features) == 0
    return flat


def span(features: Features) -> tuple[int, int]:
    """Return the begin and end of the storage of the first entry."""
    storage = next(iter(features.values()))[0].untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def assert_inside(flat: list[Tensor], bounds: tuple[int, int]) -> None:
    """Assert that all outputs lie in memory that the entries had, and apart from each other."""
    at = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in flat if len(t))
    assert all(bounds[0] <= lo < hi <= bounds[1] for lo, hi in at)
    assert all(hi <= lo for (_, hi), (lo, _) in pairwise(at))


# Values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    for features in (parts(ROWS, (3,), dtype), parts(ROWS, (2, 2), dtype, order=1, gap=1)):
        consume(features)
    consume(batch_major(parts(ROWS, (3,), dtype)))


JOBS = {
    "one entry": ((3,),),
    "one key": ((3, 1, 2),),
    "one batch": ((3,), (1,), (2,)),
    "many keys": ((2, 1),) * 40,
    "many batches": ((1, 2, 0) * 20, (2, 1, 1) * 20),
    "no rows in a batch": ((0, 2), (0, 3)),
    "no rows": ((0, 0), (0, 0)),
    "rows of a first entry only": ((5, 0), (0, 0)),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("form", ["key-major", "batch-major"])
def test_jobs(name: str, form: str, engine: str) -> None:
    for features in (parts(JOBS[name]), apart(JOBS[name]), parts(JOBS[name], order=2, gap=2)):
        job: Any = features if form == "key-major" else batch_major(features)
        features = {}
        consume(job)


@pytest.mark.parametrize("row_shape", [(), (1,), (7,), (0,), (2, 0), (3, 5, 2)])
def test_row_shapes(row_shape: tuple[int, ...], engine: str) -> None:
    consume(parts(ROWS, row_shape))
    consume(apart(ROWS, row_shape))


def test_nothing_to_do(engine: str) -> None:
    for empty in ({}, {"k": []}, [], OrderedDict(a=[], b=[])):
        flat = goflat.flatten_(empty, max_growth=0)
        assert (list(flat), len(empty), flat.plan.growth) == ([], 0, 0)
    with pytest.raises(goflat.ShapeError):
        goflat.flatten_([{}, {}])
    with pytest.raises(goflat.ShapeError, match="no tensors"):
        goflat.cat_([])


def test_entries_that_cat_skips(engine: str) -> None:
    legacy, rows = torch.empty(0), [torch.ones(2, 3), torch.zeros(1, 3)]
    consume({"a": [legacy.clone(), rows.pop()], "b": [rows.pop(), legacy.clone()]})
    consume({"a": [legacy.clone()], "b": [legacy.clone()]})
    consume({"a": [torch.ones(0, 3), torch.ones(2, 3)], "b": [legacy.clone(), legacy.clone()]})


def test_errors_are_those_of_flatten_and_change_nothing(engine: str) -> None:
    for rows, error in (
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 4)]}, goflat.ShapeError),
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 3).long()]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [np.ones((2, 3))]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [None]}, goflat.DTypeError),
        ({"a": [torch.ones(2, 3)], "b": [torch.ones(2, 3, device="meta")]}, goflat.DeviceError),
        ({"a": [torch.ones(2, 3)], "b": []}, goflat.ShapeError),
        ({"a": torch.ones(2, 3)}, goflat.DTypeError),
        ({"a": [torch.tensor(1.0)]}, goflat.ShapeError),
    ):
        features: dict[str, Any] = dict(rows)
        before = {key: [id(x) for x in entries] for key, entries in rows.items()}
        with pytest.raises(error) as caught:
            goflat.flatten_(features, max_growth=LOTS)
        with pytest.raises(error) as of_flatten:
            goflat.flatten(features)
        assert str(caught.value) == str(of_flatten.value)
        if type(features["a"]) is list:
            assert {key: [id(x) for x in entries] for key, entries in features.items()} == before


# In place


ORDERS = [None, 0, 1, 2, 3]


@native
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gap", [0, 1, 5])
@pytest.mark.parametrize("row_shape", [(1,), (3,), (64,), (5, 7)])
def test_parts_of_one_tensor_become_outputs_in_its_memory(
    order: int | None, gap: int, row_shape: tuple[int, ...]
) -> None:
    features = parts([[3, 1, 4], [1, 5, 9], [2, 6, 5]], row_shape, order=order, gap=gap)
    bounds = span(features)
    flat = consume(features, max_growth=0)
    assert (flat.plan.growth, flat.plan.peak, flat.plan.strategy) == (
        0,
        flat.plan.nbytes,
        "inplace",
    )
    assert flat.plan.in_place == 3
    assert_inside(flat, bounds)


@native
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float64, torch.complex128])
def test_rows_of_odd_bytes(dtype: torch.dtype) -> None:
    for cols in (1, 3, 7, 13):
        for order in ORDERS:
            features = parts([[3, 0, 1], [1, 5, 2]], (cols,), dtype, order=order)
            bounds = span(features)
            assert_inside(consume(features, max_growth=0), bounds)


@native
@pytest.mark.parametrize("grad", [True, False])
def test_split_views(grad: bool) -> None:
    """As detection models make them: one call for all images, then split."""
    with torch.set_grad_enabled(grad):
        pooled = {key: torch.rand(8, 4, 2) for key in "abc"}
        features = {key: list(rows.split([3, 5])) for key, rows in pooled.items()}
        pooled.clear()
        del pooled
        flat = consume(features)
    assert flat.plan.growth == 3 * 8 * 8 * 4, "no pool of 8 rows has room for 9"
    whole = torch.rand(12, 4)
    chunks = list(whole.chunk(3))
    del whole
    with torch.set_grad_enabled(grad):
        assert goflat.cat_(chunks, max_growth=0).shape == (12, 4)
    views = list(torch.rand(6, 2).unbind())
    assert goflat.cat_(views, max_growth=0).shape == (12,)


@native
def test_parts_in_several_storages() -> None:
    """The output that fits into a storage lies there; the other is allocated."""
    large, small = torch.rand(10, 3), torch.rand(2, 3)
    features = {"a": [*large.split([4, 6])], "b": [small[:1], small[1:]]}
    del large, small
    flat = consume(features)
    assert flat.plan.strategy == "mixed"
    assert flat.plan.in_place == 1
    assert 0 < flat.plan.growth <= 7 * 12


@native
def test_results_are_consumed_again_in_place() -> None:
    flat: Any = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    bounds = span({"": list(flat)})
    for _ in range(4):
        lists = list(flat)[::-1]
        del flat[:]
        joined = goflat.cat_(lists, max_growth=0)
        assert_inside([joined], bounds)
        cut = {"a": [joined[:2], joined[2:5]], "b": [joined[5:6], joined[6:]]}
        del joined
        flat = consume(cut, max_growth=0)
        assert_inside(flat, bounds)


@native
def test_a_result_is_a_list_that_can_be_consumed() -> None:
    flat = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    bounds, want = span({"": list(flat)}), torch.cat(list(flat))
    joined = goflat.cat_(flat, max_growth=0)
    assert_bits(joined, want)
    assert_inside([joined], bounds)
    assert len(flat) == 0
    flat = consume(parts([[3, 1], [2, 4]]), max_growth=0)
    holder = {"x": flat}
    del flat
    consume(holder, max_growth=0)


@native
def test_slots_of_an_arena_that_is_gone() -> None:
    layout = goflat.Layout.of(apart(ROWS))
    arena = goflat.Arena(layout)
    for key in layout.keys:
        for b in range(layout.batches):
            arena.put(key, b, torch.rand(layout.rows[key][b], 3))
    features = {key: [arena[key][b] for b in range(layout.batches)] for key in layout.keys}
    held, want = arena.flat, [t.clone() for t in arena.flat]
    flat = consume(features)
    assert_all_bits(list(held), want)
    assert flat.plan.growth > 0, "the arena still refers to its slots"


# Containers


def test_containers_of_all_kinds_are_emptied(engine: str) -> None:
    makers: list[Callable[[Features], Any]] = [
        dict,
        OrderedDict,
        lambda f: defaultdict(list, f),
        batch_major,
        lambda f: [OrderedDict(batch) for batch in batch_major(f)],
        lambda f: [defaultdict(int, batch) for batch in batch_major(f)],
    ]
    for make in makers:
        features = parts(ROWS)
        job = make(features)
        features = {}
        flat = consume(job)
        assert engine != "native" or flat.plan.strategy == "inplace"


def test_what_cannot_be_emptied_stays_as_it_is(engine: str) -> None:
    makers: list[Callable[[Features], Any]] = [
        lambda f: {key: tuple(entries) for key, entries in f.items()},
        MappingProxyType,
        UserDict,
        lambda f: tuple(batch_major(f)),
        lambda f: [MappingProxyType(batch) for batch in batch_major(f)],
    ]
    for make in makers:
        features = parts(ROWS)
        job = make(features)
        features = {}
        entries = [
            t
            for x in (job.values() if hasattr(job, "values") else job)
            for t in (x.values() if hasattr(x, "values") else x)
        ]
        before, want = (
            [t.clone() for t in entries],
            answer(dict(job) if hasattr(job, "items") else list(job)),
        )
        assert_all_bits(list(goflat.flatten_(job, max_growth=LOTS)), want)
        assert_all_bits(entries, before)
        if type(job) in (dict, list):
            assert not job
        else:
            assert len(job) in (2, 3)


def test_a_list_with_a_tuple_inside_is_not_written_over() -> None:
    """Views of one dead tensor, some of which lie in a tuple that the caller has."""
    cut = parts([[2, 3], [1, 4]])
    kept = tuple(cut["1"])
    features: dict[str, Any] = {"0": cut["0"], "1": kept}
    cut.clear()
    before, want = [t.clone() for t in kept], answer(features)
    planned = goflat.plan(features, inplace=True)
    assert planned.why("1", 0) == "copied: they are in a tuple"
    assert planned.why("0", 0).startswith("copied: ")
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert_all_bits(list(kept), before)


def test_outer_container_may_be_held_by_others(engine: str) -> None:
    features = parts(ROWS)
    twin = features
    flat = consume(features)
    assert twin == {}
    assert engine != "native" or flat.plan.growth == 0


# cat_


def test_cat(engine: str) -> None:
    for rows in ([[3], [1], [0], [2]], [[4]], [[0], [0]]):
        for features in (parts(rows), apart(rows)):
            tensors = [entries.pop() for entries in features.values()]
            want = torch.cat(tensors).clone()
            assert_bits(goflat.cat_(tensors, max_growth=LOTS), want)
            assert tensors == []


def test_cat_words_its_errors_by_position(engine: str) -> None:
    tensors = [torch.ones(2, 3), torch.ones(2, 4)]
    with pytest.raises(
        goflat.ShapeError, match=r"tensor 1: got \(2, 4\), want \(\*, 3\)"
    ) as caught:
        goflat.cat_(tensors, max_growth=LOTS)
    assert (caught.value.key, caught.value.batch) == (None, 1)
    assert [t.shape for t in tensors] == [(2, 3), (2, 4)]
    with pytest.raises(goflat.MemoryLimitError, match="at most 0 bytes"):
        goflat.cat_([torch.ones(2), torch.ones(3)], max_growth=0)
    with pytest.raises(goflat.DTypeError, match="a list of arrays"):
        goflat.cat_(torch.ones(3))


def test_cat_of_a_tuple_leaves_it_alone(engine: str) -> None:
    tensors = (torch.ones(2, 3), torch.zeros(1, 3))
    assert goflat.cat_(tensors, max_growth=LOTS).shape == (3, 3)
    assert [int(t.sum()) for t in tensors] == [6, 0]


# NumPy and others


def test_numpy(engine: str) -> None:
    arrays: Any = numpy_job(apart(ROWS))
    want = [
        out.numpy()
        for out in answer({k: list(map(torch.from_numpy, v)) for k, v in arrays.items()})
    ]
    flat = goflat.flatten_(arrays, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert arrays == {}
    twin = np.ones((2, 3))
    rows = [twin, np.zeros((1, 3))]
    assert goflat.cat_(rows, max_growth=LOTS).shape == (3, 3)
    assert rows == []
    assert (twin == 1).all()


def test_other_libraries(engine: str) -> None:
    arrays: Any = {key: [Standard(t.numpy()) for t in ts] for key, ts in apart(ROWS).items()}
    flat = goflat.flatten_(arrays, max_growth=LOTS)
    assert type(flat[0]) is Standard
    assert arrays == {}


# What results can do


def made() -> tuple[Tensor, Tensor]:
    """Return an output that lies in its entries' memory, and what it must be."""
    whole = torch.arange(36.0).reshape(12, 3)
    features = {"0": [whole[7:10], whole[11:]], "1": [whole[:2], whole[2:6]]}
    del whole
    want = answer(features)
    return goflat.flatten_(features, max_growth=0 if _native.available() else None)[1], want[1]


def test_results_survive_everything(tmp_path: Path) -> None:
    out, want = made()
    assert_bits(out.clone(), want)
    assert_bits(copy.deepcopy(out), want)
    assert_bits(torch.empty_like(out).copy_(out), want)
    assert_bits(pickle.loads(pickle.dumps(out)), want)
    torch.save(out, tmp_path / "out.pt")
    assert_bits(torch.load(tmp_path / "out.pt"), want)
    assert_bits(torch.from_dlpack(out), want)
    assert_bits(out.numpy(), want.numpy())
    assert_bits(out.cpu().contiguous(), want)
    assert_bits(out[1:].reshape(-1), want[1:].reshape(-1))
    assert_bits(out.view(torch.int32), want.view(torch.int32))
    assert (out.is_contiguous(), out.is_leaf, out.requires_grad, out._base) == (
        True,
        True,
        False,
        None,
    )


def test_results_are_ordinary_tensors() -> None:
    out, want = made()
    assert_bits(out.mul_(2).add_(1), want * 2 + 1)
    out.resize_(7, 3)
    assert_bits(out[:5], want * 2 + 1)
    out, want = made()
    out.requires_grad_()
    (out * want).sum().backward()
    assert_bits(out.grad, want)
    out, want = made()
    linear = torch.nn.Linear(3, 2)
    linear(out).sum().backward()
    assert_bits(linear.weight.grad, want.sum(0).expand(2, 3).contiguous())
    out.share_memory_()
    assert_bits(out, want)


def test_results_do_not_share_autograd_state() -> None:
    flat = consume(parts([[3, 1], [2, 4]]))
    flat[0].requires_grad_()
    assert not flat[1].requires_grad
    flat[1].add_(1)
    (flat[0] ** 2).sum().backward()
    version = flat[1]._version
    flat[0].detach().add_(1)
    assert flat[1]._version == version, "a change of one output counts as one of the other"


def test_results_outlive_entries_flat_and_containers() -> None:
    features = parts([[3, 1], [2, 4]], order=1)
    want = answer(features)
    flat = goflat.flatten_(features, max_growth=LOTS)
    last = flat[1]
    del flat, features
    gc.collect()
    junk = [torch.full((10, 3), 7.0) for _ in range(200)]
    assert_bits(last, want[1])
    del junk


def test_flat_knows_layout_and_plan() -> None:
    features = parts(ROWS)
    layout = goflat.Layout.of(features)
    planned = goflat.plan(features, inplace=True)
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert flat.layout == layout
    assert flat.plan.to_dict() == planned.to_dict()
    assert str(flat.plan) == str(planned)
    assert flat.offsets(0).tolist() == [0, 2, 2, 5]
    assert flat.unflatten()["0"][1].shape == (1, 3)
    assert copy.copy(flat).layout == layout


def test_memory_goes_back_with_the_outputs() -> None:
    features = parts(ROWS)
    storage = weakref.ref(next(iter(features.values()))[0].untyped_storage())
    entry = weakref.ref(features["0"][0])
    flat = consume(features)
    gc.collect()
    assert entry() is None
    del flat
    gc.collect()
    assert storage() is None


# Autograd


def test_backward_through_consumed_entries() -> None:
    """Outputs of convolutions: their backward needs sizes only."""
    weight = torch.rand(4, 3, requires_grad=True)
    data = [torch.rand(n, 3) for n in (2, 1, 3, 2)]

    def gradient(call: Callable[[Any], Any]) -> Tensor:
        rows = [x @ weight.T for x in data]
        features = {"a": rows[:2], "b": rows[2:]}
        rows.clear()
        weight.grad = None
        sum((out * (b + 1)).pow(2).sum() for b, out in enumerate(call(features))).backward()
        assert weight.grad is not None
        return weight.grad.clone()

    want = gradient(oracle)
    got = gradient(lambda f: goflat.flatten_(f, max_growth=LOTS))
    torch.testing.assert_close(got, want)


def test_backward_where_entries_are_saved() -> None:
    weight = torch.rand(6, 3, requires_grad=True)

    def gradient(call: Callable[[Any], Any]) -> Tensor:
        rows = [torch.relu(weight[:2]).exp(), torch.sigmoid(weight[2:])]
        features = {"a": rows[:1], "b": rows[1:]}
        rows.clear()
        weight.grad = None
        call(features)[0].pow(2).sum().backward()
        assert weight.grad is not None
        return weight.grad.clone()

    assert_bits(gradient(lambda f: goflat.flatten_(f, max_growth=LOTS)), gradient(oracle))


def test_without_grad_mode_non_leaves_are_consumed() -> None:
    weight = torch.rand(6, 3, requires_grad=True)
    rows = list((weight + 1).detach().split([2, 4]))
    with torch.no_grad():
        assert goflat.cat_(rows, max_growth=LOTS).grad_fn is None
    hidden = weight + 1
    loss = (hidden * 1).sum()
    rows = list(hidden.split([2, 4]))
    del hidden
    with torch.no_grad():
        goflat.cat_(rows, max_growth=LOTS)
    loss.backward()
    assert weight.grad is not None
    assert_bits(weight.grad, torch.ones(6, 3))


def test_inference_mode(engine: str) -> None:
    with torch.inference_mode():
        features = parts(ROWS)
        flat = consume(features)
        flat[0].add_(1)
    features = parts(ROWS)
    with torch.inference_mode():
        entries = {key: [t.clone() for t in x] for key, x in features.items()}
    outside = consume(entries)
    outside[0].mul_(1)
    assert not outside[0].is_inference()


# max_growth


def test_the_exact_bound(engine: str) -> None:
    for make in (apart, lambda rows: parts(rows, gap=1, order=3)):
        features = make([[2, 5], [4, 1], [3, 3]])
        want = answer(features)
        before = {key: [t.clone() for t in entries] for key, entries in features.items()}
        growth = goflat.plan(features, inplace=True).growth
        assert isinstance(growth, int)
        try:
            goflat.flatten_(features, max_growth=growth - 1)
        except goflat.MemoryLimitError as error:
            assert f"a growth of {growth} bytes" in str(error)
            assert f"at most {growth - 1} bytes" in str(error)
            for key in features:
                assert_all_bits([t.clone() for t in features[key]], before[key])
            flat = goflat.flatten_(features, max_growth=growth)  # while the error is alive
        else:
            raise AssertionError("no error")
        assert flat.plan.growth == growth
        assert_all_bits(list(flat), want)


def test_a_warning_that_is_an_error_leaves_everything(engine: str) -> None:
    features = apart(ROWS)
    before = {key: list(entries) for key, entries in features.items()}
    same = [a is b for key in features for a, b in zip(features[key], before[key], strict=True)]
    before.clear()
    growth = goflat.plan(features, inplace=True).growth
    with pytest.raises(goflat.GrowthWarning, match=r"flatten_ grows by .*; say max_growth="):
        goflat.flatten_(features)
    assert all(same)
    try:
        goflat.flatten_(features)
    except goflat.GrowthWarning:
        # the frames of the warning refer to nothing
        assert goflat.plan(features, inplace=True).growth == growth
        assert consume(features).plan.growth == growth


def test_the_warning_points_at_the_caller(engine: str) -> None:
    with pytest.warns(goflat.GrowthWarning) as caught:
        goflat.flatten_(apart(ROWS))
        goflat.cat_([torch.ones(2), torch.ones(3)])
    assert [warning.filename for warning in caught] == [__file__] * 2


@native
def test_no_warning_where_nothing_grows() -> None:
    goflat.flatten_(parts(ROWS))
    goflat.flatten_({})


@pytest.mark.parametrize("limit", ["x", 1.5, True, [], np.float32(3)])
def test_max_growth_is_a_whole_number(limit: Any, engine: str) -> None:
    features = apart(ROWS)
    for call in (
        goflat.flatten_,
        lambda f, max_growth: goflat.plan(f, inplace=True, max_growth=max_growth),
    ):
        with pytest.raises(goflat.DTypeError, match="max_growth"):
            call(features, max_growth=limit)
    assert len(features) == 3


def test_max_growth_of_other_integers_and_below_zero(engine: str) -> None:
    features = apart(ROWS)
    with pytest.raises(goflat.MemoryLimitError):
        goflat.flatten_(features, max_growth=-1)
    consume(features, max_growth=np.int64(1 << 40))


# Failures


class Broken(Exception):
    pass


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let call `number` of a function of the extension, or of torch.empty, fail."""
    count = [0]

    def fail(*args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            raise RuntimeError("OOM|-1|-1|nothing|some memory: a test does not let allocate")
        return real(*args, **options)

    owner: Any = _inplace.torch if name == "empty" else _native._core
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, fail)


def mixed() -> Features:
    """Return a job of several allocations, moves and frees, and outputs in place."""
    features = parts([[3, 1, 2, 0], [2, 4, 1, 3]], order=1, gap=1)
    for key, entries in apart([[4, 2, 5, 1], [1, 7, 2, 2]]).items():
        features[f"apart {key}"] = entries
    return features


@native
@pytest.mark.parametrize("name", ["empty", "bridge_SetBase", "bridge_RunStep", "bridge_Adopt"])
def test_a_failure_at_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 100):
        features = mixed()
        want = answer(features)
        originals = {
            (key, b): t.clone() for key, entries in features.items() for b, t in enumerate(entries)
        }
        with monkeypatch.context() as patch:
            failing(patch, name, number)
            try:
                flat = goflat.flatten_(features, max_growth=LOTS)
                outputs = None
            except goflat.OutOfMemoryError as error:
                outputs = error.outputs  # type: ignore[attr-defined]
        if outputs is None:
            assert number > 1
            assert_all_bits(list(flat), want)
            return
        left = {
            (key, b): t
            for key, entries in features.items()
            for b, t in enumerate(entries)
            if t is not None
        }
        assert_all_bits(list(left.values()), [originals[at] for at in left])
        for b, out in enumerate(outputs):
            if out is not None:
                assert_bits(out, want[b])
        joined = list(left.values())
        left.clear()
        features.clear()
        outputs = out = None
        if joined:
            again = torch.cat(joined).clone()
            assert_bits(goflat.cat_(joined, max_growth=LOTS), again)
        gc.collect()
        assert live() == (0, 0, 0)
    raise AssertionError("it never stopped failing")


@native
def test_a_first_failure_changes_nothing_and_can_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = apart(ROWS)
    want = answer(features)
    with monkeypatch.context() as patch:
        failing(patch, "empty", 1)
        try:
            goflat.flatten_(features, max_growth=LOTS)
        except goflat.OutOfMemoryError as error:
            assert error.outputs == [None, None]  # type: ignore[attr-defined]
            flat = goflat.flatten_(features, max_growth=LOTS)
        else:
            raise AssertionError("no error")
    assert_all_bits(list(flat), want)


def test_failures_while_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension, outputs that are done are kept and their entries gone."""
    from goflat import _api

    features = apart([[2, 1, 1], [1, 4, 2]])
    want = answer(features)
    monkeypatch.setattr(_native, "_core", None)
    real, count = _api._engine, [0]

    def fail(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 2:
            raise goflat.OutOfMemoryError("no memory, as a test wants it")
        return real(*args)

    monkeypatch.setattr(_api, "_engine", fail)
    with pytest.raises(goflat.OutOfMemoryError) as caught:
        goflat.flatten_(features, max_growth=LOTS)
    outputs = caught.value.outputs  # type: ignore[attr-defined]
    assert_bits(outputs[0], want[0])
    assert outputs[1:] == [None, None]
    assert all(entries[0] is None and len(entries) == 3 for entries in features.values())
    left = {key: entries[1:] for key, entries in features.items()}
    features.clear()
    assert_all_bits(list(goflat.flatten_(left, max_growth=LOTS)), want[1:])


# Environment, processes, threads


def test_goflat_inplace_0(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("GOFLAT_INPLACE", "0")
    features = parts(ROWS)
    bounds = span(features)
    flat = consume(features)
    assert flat.plan.strategy == "stream"
    assert flat.plan.in_place == 0
    assert flat.plan.growth > 0
    assert all(not bounds[0] <= out.data_ptr() < bounds[1] for out in flat)


def test_goflat_verify(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("GOFLAT_VERIFY", "1")
    for dtype in DTYPES:
        consume(parts(ROWS, (3,), dtype, order=1))
    kept = torch.ones(2, 3)
    consume({"a": [kept, torch.ones(0, 3)], "b": [torch.zeros(1, 3), torch.ones(2, 3)]})
    assert goflat.cat_([np.ones(3), np.zeros(2)], max_growth=LOTS).shape == (5,)
    assert goflat.flatten_({}, max_growth=0) == []


@native
def test_goflat_verify_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAT_VERIFY", "1")
    core: Any = _native._core
    real = core.bridge_RunStep

    def forgets(*args: Any) -> Any:
        return 0

    def tramples(*args: Any) -> Any:
        kept.zero_()
        return real(*args)

    kept = torch.ones(2, 3)
    monkeypatch.setattr(core, "bridge_RunStep", forgets)
    with pytest.raises(goflat.Error, match=r"output 0 is not what torch.cat gives"):
        goflat.flatten_(parts(ROWS, order=1), max_growth=LOTS)
    monkeypatch.setattr(core, "bridge_RunStep", tramples)
    with pytest.raises(
        goflat.Error, match=r"key 'b', batch 0, which is held, has changed|is not what"
    ):
        goflat.flatten_({"a": [torch.ones(2, 3)], "b": [kept]}, max_growth=LOTS)


FORKED = """
import os, traceback
import torch, goflat
torch.set_num_threads(1)

def job():
    whole = torch.arange(30.0).reshape(10, 3)
    return {"a": [whole[:2], whole[2:5]], "b": [whole[5:6], whole[6:]]}

def works(strategy):
    for _ in range(5):
        features = job()
        want = [torch.cat([x[b] for x in features.values()]) for b in range(2)]
        flat = goflat.flatten_(features, max_growth=10**6)
        assert features == {}
        assert all(torch.equal(a, b) for a, b in zip(flat, want))
        assert flat.plan.strategy == strategy, flat.plan
        assert goflat.plan(job(), inplace=True).strategy == strategy

works("inplace")
outlived = goflat.flatten_(job(), max_growth=0)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        works("stream")
        assert outlived[0].sum() == 63
        outlived.clear()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
works("inplace")
"""


@native
def test_a_forked_child_streams() -> None:
    assert child.fork(FORKED, engine="native") == ""


@native
def test_at_exit_outputs_may_be_anywhere() -> None:
    code = """
    import sys, torch, goflat
    whole = torch.arange(30.0).reshape(10, 3)
    features = {"a": [whole[:2], whole[2:5]], "b": [whole[5:6], whole[6:]]}
    flat = goflat.flatten_(features, max_growth=10**6)
    views = list(whole.split(5)); del whole
    goflat.kept = goflat.cat_(views, max_growth=0)
    cycle = [flat]; cycle.append(cycle)
    sys.modules["kept"] = flat[1]
    """
    child.run(code, engine="native")


def test_8_threads_on_jobs_of_their_own() -> None:
    start = threading.Barrier(8)

    def work(number: int) -> None:
        rng = random.Random(number)
        start.wait()
        for i in range(40):
            rows = [[rng.randrange(6) for _ in range(3)] for _ in range(4)]
            make = parts if i % 2 else apart
            consume(make(rows, (rng.randrange(1, 5),)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.parametrize("name", ["inplace", "apart", "numpy", "cat", "limit", "leaf", "plan"])
def test_no_leak(name: str) -> None:
    """Repeat a call until thousands of them leave memory as it was: see test_lifetime."""
    from test_lifetime import growth

    def refused(call: Callable[[], Any]) -> None:
        try:
            call()
        except goflat.Error:
            return
        raise AssertionError("no error")

    leaf = torch.ones(2, 3, requires_grad=True)
    calls: dict[str, Callable[[], Any]] = {
        "inplace": lambda: goflat.flatten_(parts(ROWS), max_growth=LOTS),
        "apart": lambda: goflat.flatten_(apart(((1, 2), (2, 1))), max_growth=LOTS),
        "numpy": lambda: goflat.flatten_({"a": [np.ones(3), np.ones(2)]}, max_growth=LOTS),
        "cat": lambda: goflat.cat_(list(torch.ones(4, 2).split(1)), max_growth=LOTS),
        "limit": lambda: refused(lambda: goflat.flatten_(apart(((1, 2), (2, 1))), max_growth=0)),
        "leaf": lambda: refused(lambda: goflat.flatten_({"a": [leaf]}, max_growth=0)),
        "plan": lambda: goflat.plan(parts(ROWS), inplace=True),
    }
    grown = [growth(calls[name], 1_000)]
    while grown[-1] > 50_000:
        assert sum(grown) < 12_000_000, f"grew by {grown} bytes"
        grown.append(growth(calls[name], 1_000))


# Compilers and tracers


def test_torch_compile() -> None:
    def step(x: Tensor, y: Tensor) -> Any:
        features = {"a": [x * 2, x + 1], "b": [y * 3, y]}
        flat = goflat.flatten_(features, max_growth=LOTS)
        return flat[0] + 1, flat[1], len(features)

    goflat.flatten({"a": [torch.ones(1)]})  # so that torch has been met
    x, y = torch.rand(2, 3), torch.rand(1, 3)
    compiled: Any = torch.compile(step, backend="eager", fullgraph=dynamo.takes_flat())
    got, want = compiled(x, y), step(x, y)
    assert_all_bits(list(got[:2]), list(want[:2]))
    assert got[2] == want[2] == 0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_jit_trace() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        return goflat.cat_([x * 2, y * 3], max_growth=LOTS) + 1

    x, y = torch.rand(2, 3), torch.rand(1, 3)
    traced = torch.jit.trace(step, (x, y))
    again = torch.rand(2, 3), torch.rand(1, 3)
    assert_bits(traced(*again), step(*again))
