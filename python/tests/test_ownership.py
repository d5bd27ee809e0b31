"""Who else uses the memory of entries, asked in both ways: counts read in place, and attributes."""

from __future__ import annotations

import copy
import gc
import random
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from goflat import _native, _ownership
from goflat._ownership import (
    ADOPTABLE,
    FOREIGN,
    HELD,
    IS_ADOPTED,
    IS_GRAD,
    IS_STRIDED,
    IS_VIEW,
    LEAF,
    MODE,
    NOT_PLAIN,
    NOT_TORCH,
    OVERLAP,
    SAVED,
    SHARED,
    STORAGE,
    STRIDED,
    TWICE,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

WAYS = ("in place", "by attributes")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ask in one of the two ways."""
    if request.param == "by attributes":
        _ownership.meet(slow=True)
    assert _ownership.meet()
    yield request.param
    if request.param == "by attributes":
        _ownership._met.clear()
    assert _ownership.meet()


def reasons(entries: list[Any], expected: int = 0) -> list[int]:
    return [record.reason for record in _ownership.survey(entries, expected)]


def new(*shape: int) -> Tensor:
    return torch.ones(shape)


def test_counts_are_read_in_place_in_the_versions_of_torch_that_are_tested() -> None:
    assert _ownership.meet()
    assert _ownership.is_quick()


# Each case: entries, and whatever else holds them.


def conv(trainable: bool) -> Tensor:
    weight = torch.ones(4, 3, 1, requires_grad=trainable)
    return torch.nn.functional.conv1d(new(2, 3, 5), weight)


def asked_for_its_storage() -> Tensor:
    tensor = new(3)
    tensor.untyped_storage()
    return tensor


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3)


def adoptable() -> dict[str, list[Any]]:
    """Return entries that nobody else uses."""
    base = new(8, 3)
    with torch.no_grad():
        quiet = new(6, 2).split(3)
    parameter = torch.nn.Parameter(new(3))
    return {
        "plain": [new(2, 3), new(5)],
        "dtypes": [torch.ones(2, dtype=d) for d in (torch.int8, torch.bool, torch.complex64)],
        "empty": [new(0, 4), torch.empty(0)],
        "no dimensions": [torch.tensor(3.0)],
        "one row, odd strides": [torch.empty_strided((1, 3), (17, 1))],
        "joined": [torch.cat([new(2), new(3)])],
        "in place": [new(3).add_(1).t_()],
        "resized": [new(3).resize_(5)],
        "cloned": [copy.deepcopy(new(3)), parameter.detach().clone()],
        "no leaf": [conv(True), conv(False)],
        "inference": [inference()],
        "asked for its storage": [asked_for_its_storage()],
        "grown again": [new(3).requires_grad_().detach_()],
        "split": list(base.split(3)),
        "split with sizes": list(new(7, 2).split([1, 0, 6])),
        "chunk": list(new(7, 2).chunk(3)),
        "unbind": list(new(3, 2).unbind()),
        "rows": [new(5)[1:4]],
        "views of views": [view for part in new(8, 2).split(4) for view in part.split(2)],
        "split without grad": list(quiet),
        "split of no leaf": list(conv(True).split(1)),
        "detached views": [view.detach() for view in new(6, 2).split(2)],
        "reversed views": list(new(6, 2).split(2))[::-1],
        "one view twice as large as another": list(new(6, 2).split([2, 4])),
    }


@pytest.mark.parametrize("name", adoptable())
def test_adoptable(name: str, way: str) -> None:
    entries = adoptable()[name]
    gc.collect()
    assert reasons(entries) == [ADOPTABLE] * len(entries), way


def held() -> dict[str, tuple[list[Any], Any, list[int]]]:
    """Return entries, what holds them, and why they may not be adopted."""
    tensor, view, alias, data, wrapped, typed = (new(4, 3) for _ in range(6))
    numpy, capsule, twin, exported = (new(4, 3) for _ in range(4))
    base, left, sliced, both = new(6, 2), new(6, 2).split(2), new(5), new(6, 2).split(2)
    leaf = torch.ones(3, requires_grad=True)
    saved, relu = new(3), torch.relu(leaf * 2)
    detached = new(6, 2).split(2)
    attribute = new(3)
    hooked = conv(True)
    hooked.register_hook(lambda grad, t=hooked: grad)
    resized = new(3)
    resized.numpy()
    shared = new(3).share_memory_()
    cycle = new(3)
    cycle.me = [cycle]  # type: ignore[attr-defined]
    return {
        "variable": ([tensor], tensor, [HELD]),
        "list": ([new(3), tensor], [tensor], [ADOPTABLE, HELD]),
        "reference cycle": ([cycle], None, [HELD]),
        "hook": ([hooked], None, [HELD]),
        "view": ([view], view[1:], [SAVED]),
        "alias": ([alias], alias.detach(), [SHARED]),
        "data": ([data], data.data, [SHARED]),
        "storage": ([wrapped], wrapped.untyped_storage(), [STORAGE]),
        "typed storage": ([typed], quietly(typed.storage), [STORAGE]),
        "numpy": ([numpy], numpy.numpy(), [SHARED]),
        "memory that NumPy has seen": ([resized], None, [FOREIGN]),
        "from_dlpack": ([twin], torch.from_dlpack(twin), [SAVED]),
        "base": (list(base.split(2)), base, [SHARED] * 3),
        "a view kept": (list(left[1:]), left[0], [SHARED] * 2),
        "a view that is an entry, kept": (list(both), both[1], [SHARED, HELD, SHARED]),
        "view of a view kept": ([sliced[1:]], sliced[2:3], [SHARED]),
        "two bases": ([detached[0], detached[1].detach()], detached, [HELD, SHARED]),
        "saved as an input": ([saved], leaf * saved, [SAVED]),
        "saved as an output": ([relu], relu.sum(), [SHARED]),
        "script module": ([attribute], scripted(attribute), [SAVED]),
        "leaf": ([torch.ones(3, requires_grad=True)], None, [LEAF]),
        "shared memory": ([shared], None, [FOREIGN]),
        "exported": ([exported], torch.utils.dlpack.to_dlpack(exported), [SAVED]),
        "exported by method": ([capsule], capsule.__dlpack__(), [SAVED]),
    }


class Holding(torch.nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("tensor", tensor)

    def forward(self) -> Tensor:
        return self.tensor  # type: ignore[no-any-return]


def scripted(tensor: Tensor) -> Any:
    """Return a script module that holds `tensor`, and nothing of Python's."""
    return quietly(lambda: torch.jit.script(Holding(tensor))._c)


def quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


@pytest.mark.parametrize("name", held())
def test_held(name: str, way: str) -> None:
    entries, keep, want = held()[name]
    assert reasons(entries) == want, way
    del keep


def foreign(folder: Path) -> dict[str, Tensor]:
    path = folder / "memory"
    path.write_bytes(bytes(64))
    buffer = torch.frombuffer(bytearray(8), dtype=torch.uint8)
    return {
        "from_numpy": torch.from_numpy(np.ones(3)),
        "asarray": torch.asarray(np.ones(3)),
        "as_tensor": torch.as_tensor(np.ones(3)),
        "frombuffer": torch.frombuffer(bytearray(8), dtype=torch.uint8),
        "from_dlpack": torch.from_dlpack(np.ones(3)),
        "from_file": torch.from_file(str(path), shared=True, size=4),
        "from_blob over torch's": torch.from_dlpack(new(3)),
        "copy on write": torch._lazy_clone(new(3)),  # type: ignore[attr-defined]
        "over another's storage": torch.empty(0).set_(buffer.untyped_storage(), 0, (2,)),
    }


def test_foreign(way: str, tmp_path: Path) -> None:
    for name in foreign(tmp_path):
        entries = [foreign(tmp_path)[name]]
        assert reasons(entries) == [FOREIGN], (name, way)


def test_a_lazy_clone_is_not_copied_for_the_question(way: str) -> None:
    source = new(1000)
    entries = [torch._lazy_clone(source)]  # type: ignore[attr-defined]
    reasons(entries)
    assert torch._C._is_cow_tensor(entries[0]), way  # type: ignore[attr-defined]


class Special(torch.Tensor):
    pass


def test_not_plain(way: str) -> None:
    entries = {
        "parameter": torch.nn.Parameter(new(3)),
        "subclass": new(3).as_subclass(Special),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "negative": torch.ones(3, dtype=torch.complex64).conj().imag,
        "meta": torch.ones(3, device="meta"),
        "sparse": new(3).to_sparse(),
    }
    for name in list(entries):
        assert reasons([entries.pop(name)]) == [NOT_PLAIN], (name, way)
    assert reasons([np.ones(3), None, 3, object()]) == [NOT_TORCH] * 4


def test_inside_torch_func(way: str) -> None:
    seen = []

    def ask(t: Tensor) -> Tensor:
        seen.extend(reasons([t, t.clone()]))
        return t

    torch.func.vmap(ask)(new(3, 2))
    assert seen == [NOT_PLAIN] * 2, way


def test_modes(way: str) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    entries = [new(3)]
    with Mode():
        assert reasons(entries) == [MODE]
    assert reasons(entries) == [ADOPTABLE], way


def test_a_default_device_is_no_mode(way: str) -> None:
    torch.set_default_device("cpu")
    try:
        assert reasons([new(3), *new(4, 2).split(2)]) == [ADOPTABLE] * 3, way
    finally:
        torch.set_default_device(None)


# Several entries of one storage


def test_twice(way: str) -> None:
    a, b, leaf = new(3), new(3), torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(new(3))
    entries = [a, b, a, leaf, leaf, parameter, parameter]
    del a, b, leaf, parameter
    assert reasons(entries) == [TWICE, ADOPTABLE, TWICE, TWICE, TWICE, TWICE, TWICE], way


def test_overlaps(way: str) -> None:
    cases: dict[str, Callable[[], list[Tensor]]] = {
        "partly": lambda: (lambda t: [t[0:4], t[2:6]])(new(6, 2)),
        "backwards": lambda: (lambda t: [t[2:6], t[0:4]])(new(6, 2)),
        "the same": lambda: (lambda t: [t[0:2], t[0:2]])(new(6, 2)),
        "one inside the other": lambda: (lambda t: [t[0:6], t[3:4]])(new(6, 2)),
        "without a base": lambda: (lambda t: [t.detach(), t.detach()])(new(6, 2)),
    }
    for name, make in cases.items():
        entries = make()
        assert reasons(entries) == [OVERLAP] * 2, (name, way)
    entries = (lambda t: [t[0:2], t[2:2], t[1:1], t[2:4]])(new(6, 2))
    assert reasons(entries) == [ADOPTABLE] * 4, way


def test_strided(way: str) -> None:
    entries = [
        new(3, 4).t(),
        new(6)[::2],
        new(1, 3).expand(2, 3),
        new(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]
    assert reasons(entries) == [STRIDED] * 4, way
    assert all(record.flags & IS_STRIDED for record in _ownership.survey(entries))
    columns = list(new(4, 6).split(2, dim=1))  # apart, but each lies in the span of the others
    assert reasons(columns) == [OVERLAP] * 3, way


def test_one_tensor_of_a_storage_is_no_entry(way: str) -> None:
    """Each view counts, also where others are of no interest: parameters and the like."""
    base = new(6, 2)
    entries: list[Any] = [base[:3], base[3:].as_subclass(Special)]
    del base
    assert reasons(entries) == [SHARED, NOT_PLAIN], way


def test_storages_that_were_exchanged(way: str) -> None:
    entries = list(new(6, 2).split(3))
    entries[0].data = new(3, 2)  # still a view of the base, with another memory: doubtful
    assert reasons(entries) == [ADOPTABLE, SHARED], way


def test_a_base_with_a_new_storage(way: str) -> None:
    base = new(6, 2)
    entries = [base[:3]]
    base.data = new(1)
    assert reasons(entries) == [ADOPTABLE], way
    other = base.detach()
    assert reasons(entries) == [ADOPTABLE], way
    assert reasons([other]) == [HELD]


# What records say


def test_records(way: str) -> None:
    base = torch.arange(12.0).reshape(6, 2)
    storage, address = base.untyped_storage()._cdata, base.data_ptr()
    entries = [base[2:5], conv(True), torch.empty(0, 3)]
    del base
    view, grad, empty = _ownership.survey(entries)
    assert view == (address + 16, 24, storage, address, 48, 1, 0, IS_VIEW, ADOPTABLE), way
    assert grad.flags == IS_GRAD
    assert grad.bytes == grad.storage_bytes == 2 * 4 * 5 * 4
    assert (grad.address, grad.storage_address) == (entries[1].data_ptr(),) * 2
    assert (empty.address, empty.bytes, empty.storage_bytes, empty.reason) == (0, 0, 0, ADOPTABLE)
    assert not any(record.flags & IS_ADOPTED for record in (view, grad, empty))


def test_references_that_are_accounted_for(way: str) -> None:
    entries = [new(3), new(4)]
    lists = [list(entries), tuple(entries)]
    assert reasons(entries, 2) == [ADOPTABLE] * 2, way
    assert reasons(entries, 1) == [HELD] * 2, way
    assert reasons(entries, 3) == [UNKNOWN] * 2, way
    del lists
    assert reasons(entries) == [ADOPTABLE] * 2, way


def random_state(rng: random.Random, keep: list[Any]) -> list[Any]:
    """Return one or more entries in a random state."""
    t = torch.ones(rng.randrange(1, 9), rng.randrange(0, 4), requires_grad=rng.random() < 0.1)
    if rng.random() < 0.3:
        t = t * 2
    entries = [t]
    if rng.random() < 0.4:
        entries = list(t.split(rng.randrange(1, 4), dim=int(rng.random() < 0.2)))
    if rng.random() < 0.2:
        entries = [e.detach() for e in entries]
    acts: list[Callable[[Tensor], Any]] = [
        lambda e: e,
        lambda e: e.detach(),
        lambda e: e[:1],
        lambda e: e.untyped_storage(),
        lambda e: e.exp(),
        lambda e: torch.ones(1, requires_grad=True) * e,
        lambda e: e.detach().numpy(),
        lambda _: t,
    ]
    while rng.random() < 0.4:
        keep.append(rng.choice(acts)(rng.choice(entries)))
    if rng.random() < 0.5:
        keep.clear()
    rng.shuffle(entries)
    return entries[: rng.randrange(1, len(entries) + 1)]


@pytest.mark.parametrize("seed", range(60))
def test_both_ways_give_the_same_answers(seed: int) -> None:
    rng = random.Random(seed)
    keep: list[Any] = []
    entries = [e for _ in range(rng.randrange(1, 12)) for e in random_state(rng, keep)]
    if rng.random() < 0.3:
        entries.append(rng.choice(entries))
    rng.shuffle(entries)
    before = _ownership.survey(entries)
    _ownership.meet(slow=True)
    try:
        slow = _ownership.survey(entries)
    finally:
        _ownership._met.clear()
        _ownership.meet()
    assert slow == before
    assert _ownership.survey(entries) == before  # now that all storages have Python objects


# The survey changes nothing


def test_nothing_changes(way: str) -> None:
    entries = [new(3), *new(6, 2).split(2), conv(True), torch.from_numpy(np.ones(3))]
    watches = [weakref.ref(e) for e in entries]

    def counts() -> list[Any]:
        addresses = [torch._C._storage_address(e) for e in entries]  # type: ignore[attr-defined]
        uses = [torch._C._storage_Use_Count(a) for a in addresses]  # type: ignore[attr-defined]
        own = [(sys.getrefcount(entries[i]), entries[i]._use_count()) for i in range(len(entries))]
        return [*uses, *own]

    before = counts()
    for _ in range(3):
        reasons(entries)
    if way == "in place":
        assert counts() == before
    entries.clear()
    assert [watch() for watch in watches] == [None] * len(watches)


def test_nothing_is_collected_while_counts_are_read() -> None:
    """The garbage collector would run finalizers, which may take references."""
    few, many = [new(3)], [new(3) for _ in range(2000)] + list(new(600, 2).split(2))
    phases: list[str] = []
    records = _ownership.array("B", bytes(56 * len(many)))
    address = records.buffer_info()[0]

    def collections(entries: list[Tensor]) -> int:
        phases.clear()
        for _ in range(3):  # the first may meet dispatch keys for the first time
            _native._core.bridge_Survey(id(entries), 1, address)  # type: ignore[union-attr]
        return len(phases)

    gc.callbacks.append(lambda phase, info: phases.append(phase))
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert collections(many) <= collections(few)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()


class Meddler(TorchFunctionMode):
    """Does something when torch is asked whether a tensor requires grad."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.act = act

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__self__", None) is torch.Tensor.requires_grad:
            self.act()
        return func(*args, **(kwargs or {}))


def test_the_list_changes_meanwhile() -> None:
    entries = list(new(6, 2).split(2))
    watch = weakref.ref(entries[2])
    with Meddler(entries.clear):
        assert len(reasons(entries)) == 3
    assert watch() is None


def test_somebody_takes_a_reference_meanwhile() -> None:
    entries, taken = list(new(6, 2).split(2)), []
    with Meddler(lambda: taken.append(entries[0])):
        assert reasons(entries) == [HELD, SHARED, SHARED]


def test_an_interrupt_goes_through() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        raise RuntimeError("no answer")

    entries = list(new(6, 2).split(2))
    with Meddler(interrupt), pytest.raises(KeyboardInterrupt):
        reasons(entries)
    with Meddler(fail):
        assert reasons(entries) == [LEAF] * 3  # in doubt, not adoptable
    assert reasons(entries) == [ADOPTABLE] * 3
    assert _native._core.bridge_Live() == 0  # type: ignore[union-attr]


def test_surveys_inside_surveys() -> None:
    outer, inner = list(new(6, 2).split(2)), list(new(600, 2).split(2))
    answers: list[list[int]] = []

    def ask() -> None:
        if not answers:
            answers.append([])
            answers.append(reasons(inner))

    with Meddler(ask):
        assert reasons(outer) == [ADOPTABLE] * 3
    assert answers[1] == [ADOPTABLE] * 300


def test_threads(way: str) -> None:
    wrong: list[Any] = []

    def ask(seed: int) -> None:
        for i in range(100):
            entries = [new(3 + seed), *new(6, 2).split(2)]
            keep = entries[0] if i % 2 else None
            want = [HELD if i % 2 else ADOPTABLE, *[ADOPTABLE] * 3]
            if (got := reasons(entries)) != want:
                wrong.append((got, want))
            del keep

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [], way


def test_threads_that_meet_for_the_first_time(way: str) -> None:
    """Each thread either waits for what is learnt, or knows it already."""
    _ownership._met.clear()
    answers: list[list[int]] = []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        answers.append(reasons([new(3), *new(6, 2).split(2)]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[ADOPTABLE] * 4] * 8, way


def test_many_entries_at_once(way: str) -> None:
    assert reasons([]) == []
    entries = [part for _ in range(50) for part in new(40, 1).split(1)] + [
        new(1) for _ in range(3000)
    ]
    assert set(reasons(entries)) == {ADOPTABLE}, way
    random.Random(1).shuffle(entries)
    assert set(reasons(entries)) == {ADOPTABLE}, way
    kept = entries[:]
    assert not set(reasons(entries)) & {ADOPTABLE}, way
    assert set(reasons(entries, 1)) == {ADOPTABLE}, way
    del kept


@pytest.mark.slow
def test_time_of_a_survey() -> None:
    entries = [new(8, 16) for _ in range(2048)]
    records = bytearray(56 * len(entries))
    address = _ownership.array("B", records).buffer_info()[0]
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        _native._core.bridge_Survey(id(entries), 1, address)  # type: ignore[union-attr]
        times.append(time.perf_counter_ns() - start)
    assert min(times) / len(entries) < 400
