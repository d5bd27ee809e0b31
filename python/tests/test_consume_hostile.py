"""What a hostile user might try: nothing that somebody still holds may ever change."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import goflat
from goflat import _native
from helpers.compare import assert_all_bits, assert_bits
from helpers.consuming import live, own, parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")

LOTS = 1 << 40


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    if live() != (0, 0, 0):
        gc.collect()
    assert live() == (0, 0, 0)


def new(rows: int = 4, seed: int = 1) -> Tensor:
    return own((rows, 3), torch.float32, seed)


def job() -> dict[str, list[Any]]:
    """Return entries of 2 keys and 2 batches that could all move within one storage."""
    return parts([[4, 2], [3, 5]], order=5)


def answer(features: Any) -> list[Tensor]:
    return list(goflat.flatten(features))


# Things that hold entry "0", 0 of a job. Each returns what it keeps, how to read the bytes that it
# sees, and words of the reason that plan.why gives.

Held = tuple[Any, "Callable[[], Any]", str]


class Thing:
    """Has an attribute."""


def variable(f: Any) -> Held:
    t = f["0"][0]
    return t, t.clone, "held by"


def attribute(f: Any) -> Held:
    thing = Thing()
    thing.kept = f["0"][0]  # type: ignore[attr-defined]
    return thing, lambda: thing.kept.clone(), "the attribute 'kept' of a Thing"  # type: ignore[attr-defined]


def in_a_list(f: Any) -> Held:
    others = [None, f["0"][0]]
    return others, lambda: others[1].clone(), "held by a list of length 2"  # type: ignore[union-attr]


def in_a_dict(f: Any) -> Held:
    others = {"name": f["0"][0]}
    return others, lambda: others["name"].clone(), "held by the key 'name' of a dict"


def in_a_set(f: Any) -> Held:
    others = {f["0"][0]}
    return others, lambda: next(iter(others)).clone(), "held by a set of length 1"


def closure(f: Any) -> Held:
    t = f["0"][0]

    def read() -> Any:
        return t.clone()

    return read, read, "held by"


def generator(f: Any) -> Held:
    def values(t: Any) -> Iterator[Any]:
        while True:
            yield t.clone()

    running = values(f["0"][0])
    next(running)
    return running, lambda: next(running), "held by"


def view(f: Any) -> Held:
    v = f["0"][0][1:3]
    return v, v.clone, ""


def transposed(f: Any) -> Held:
    v = f["0"][0].t()
    return v, v.clone, ""


def alias(f: Any) -> Held:
    a = f["0"][0].detach()
    return a, a.clone, "storage"


def data(f: Any) -> Held:
    a = f["0"][0].data
    return a, a.clone, "storage"


def storage(f: Any) -> Held:
    s = f["0"][0].untyped_storage()
    return s, lambda: torch.tensor(s.tolist()), "its storage object is held"


def typed_storage(f: Any) -> Held:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = f["0"][0].storage()
        return s, lambda: torch.tensor(s.untyped().tolist()), "its storage object is held"


def inner_list(f: Any) -> Held:
    entries = f["0"]
    return (
        entries,
        lambda: torch.cat([t.reshape(-1) for t in entries]),
        "the list of key '0' is held",
    )


def iterator_of_a_list(f: Any) -> Held:
    it = iter(f["0"])
    return it, lambda: torch.zeros(1), "the list of key '0' is held"


def numpy_twin(f: Any) -> Held:
    a = f["0"][0].numpy()
    return a, lambda: torch.from_numpy(a.copy()), ""


def from_numpy(f: Any) -> Held:
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    f["0"][0] = torch.from_numpy(a)
    return a, lambda: torch.from_numpy(a.copy()), "NumPy"


def frombuffer(f: Any) -> Held:
    b = bytearray(range(48))
    f["0"][0] = torch.frombuffer(b, dtype=torch.float32).view(4, 3)
    return b, lambda: torch.tensor(list(b)), "torch's allocator"


def capsule(f: Any) -> Held:
    c = f["0"][0].__dlpack__()
    return c, lambda: torch.zeros(1), ""


def dlpack_twin(f: Any) -> Held:
    t = torch.from_dlpack(f["0"][0])
    return t, t.clone, ""


def saved_input(f: Any) -> Held:
    f["0"][0] = t = new()
    weight = torch.ones(4, 3, requires_grad=True)
    product = (weight * t).sum()

    def gradient() -> Any:
        (grad,) = torch.autograd.grad(product, weight, retain_graph=True)
        return grad.clone()

    return product, gradient, "torch holds it"


def script_module(f: Any) -> Held:
    module = torch.jit.ScriptModule()
    f["0"][0] = module.kept = new()
    return module, lambda: module.kept.clone(), "cript"


def live_base(f: Any) -> Held:
    base = new(8)
    f["0"][0] = base[2:6]
    return base, base.clone, "storage"


def sibling(f: Any) -> Held:
    """Another view of the storage that is no entry."""
    base = new(8)
    f["0"][0], rest = base[:4], base[4:]
    return rest, rest.clone, "storage"


def hook_of_a_graph(f: Any) -> Held:
    hidden = torch.ones(4, 3, requires_grad=True) * 2
    kept = f["0"][0]
    hidden.register_hook(lambda grad, t=kept: grad + t)
    return hidden, kept.clone, "held by"


def module_buffer(f: Any) -> Held:
    module = torch.nn.Module()
    module.register_buffer("kept", f["0"][0])
    return module, lambda: module.kept.clone(), "held by"  # type: ignore[operator]


def bound_method(f: Any) -> Held:
    method = f["0"][0].clone
    return method, method, "held by"


HOLDERS = (
    *(variable, attribute, in_a_list, in_a_dict, in_a_set, closure, generator, view, transposed),
    *(alias, data, storage, typed_storage, inner_list, iterator_of_a_list, numpy_twin, from_numpy),
    *(frombuffer, capsule, dlpack_twin, saved_input, script_module, live_base, sibling),
    *(hook_of_a_graph, module_buffer, bound_method),
)


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_what_is_held_never_changes(hold: Callable[[Any], Held]) -> None:
    features = job()
    kept, read, words = hold(features)
    before, want = read(), answer(features)
    planned = goflat.plan(features, inplace=True)
    why = planned.why("0", 0)
    assert why.startswith("copied: ")
    assert words in why
    assert f"copied: key '0', batch 0: {why[8:]}" in str(planned)
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert_bits(read(), before)
    assert features == {}
    for out in flat:
        out.fill_(7)  # results are nobody else's either
    assert_bits(read(), before)
    del kept


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_the_others_are_still_consumed(hold: Callable[[Any], Held]) -> None:
    """A key of its own storage moves in place beside a key with an entry that is held."""
    features = {"0": [new(2, 8), new(0, 9)], "1": parts([[4, 6]])["0"]}
    features["0"][0] = own((4, 3), torch.float32, 3)
    kept, read, _ = hold(features)
    before, want = read(), answer(features)
    assert goflat.plan(features, inplace=True).why("1", 0).startswith(("adopted", "given up"))
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_bits(read(), before)
    del kept


def test_errors_and_warnings_name_holders() -> None:
    features = {"a": [new()], "b": [new(2)]}
    mine = features["a"][0]
    with pytest.raises(goflat.MemoryLimitError, match=r"the variable 'mine' of test_errors_and_wa"):
        goflat.flatten_(features, max_growth=0)
    with pytest.raises(
        goflat.GrowthWarning, match="copied: key 'a', batch 0: held by the variable"
    ):
        goflat.flatten_(features)
    for _ in features["a"]:
        pass
    del mine
    for last in features["b"]:
        assert last is not None
    with pytest.raises(goflat.GrowthWarning, match="the loop variable 'last' of test_errors"):
        goflat.flatten_(features)


def test_weak_references_hold_nothing() -> None:
    features = job()
    watches = [weakref.ref(t) for entries in features.values() for t in entries]
    assert goflat.flatten_(features, max_growth=0).plan.growth == 0
    assert [watch() for watch in watches] == [None] * 4


def test_a_frame_of_another_thread() -> None:
    features, ready, done = job(), threading.Event(), threading.Event()
    read: list[Tensor] = []

    def hold() -> None:
        mine = features["1"][1]
        ready.set()
        done.wait(30)
        read.append(mine.clone())

    before, want = features["1"][1].clone(), answer(features)
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(30)
    assert "the variable 'mine' of hold()" in goflat.plan(features, inplace=True).why("1", 1)
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    done.set()
    thread.join()
    assert_bits(read[0], before)


# The same memory twice


def test_the_same_tensor_or_list_twice() -> None:
    t = new()
    cases: list[tuple[Any, str]] = [
        ({"a": [t], "b": [t]}, "key 'b', batch 0: got the tensor that key 'a', batch 0 is already"),
        ({"a": [t, t]}, "key 'a', batch 1: got the tensor that key 'a', batch 0 is already"),
        (
            {"a": [new(), t], "b": [new(), t]},
            "key 'b', batch 1: got the tensor that key 'a', batch 1 is already",
        ),
        (
            {"a": [torch.nn.Parameter(t, False)] * 2},  # which the survey does not judge
            "key 'a', batch 1: got the tensor that key 'a', batch 0 is already",
        ),
    ]
    for features, message in cases:
        with pytest.raises(goflat.OwnershipError, match=message):
            goflat.flatten_(features, max_growth=LOTS)
        assert len(features["a"]) > 0
    entries = [new(), new(2)]
    with pytest.raises(goflat.OwnershipError):
        goflat.flatten_({"a": entries, "b": entries}, max_growth=LOTS)
    with pytest.raises(goflat.OwnershipError, match="tensor 2: got the tensor that tensor 1 is"):
        goflat.cat_([new(), t, t], max_growth=LOTS)
    batch = {"a": t}
    with pytest.raises(goflat.OwnershipError):
        goflat.flatten_([batch, batch], max_growth=LOTS)


def overlapping() -> list[Any]:
    t = new(8)
    return [t[:5], t[3:], t[2:4]]


def same_twice() -> list[Any]:
    t = new(8)
    return [t[:4], t[:4]]


def expanded() -> list[Any]:
    return [new(1).expand(4, 3), new(2)]


def turned() -> list[Any]:
    t = own((3, 8), torch.float32, 1)
    return [t.t()[:3], t.t()[3:]]


def columns() -> list[Any]:
    return list(own((4, 6), torch.float32, 1).split(3, 1))


def stepped() -> list[Any]:
    t = new(8)
    return [t[::2], t[1::2]]


def conjugated() -> list[Any]:
    t = own((4, 3), torch.complex64, 1).conj()
    return [t[:1], t[1:]]


def negative() -> list[Any]:
    return [own((4, 3), torch.complex64, 1).conj().imag, new(2)]


def subclass() -> list[Any]:
    class Mine(torch.Tensor):
        pass

    return [new().as_subclass(Mine), new(2).as_subclass(Mine)]


def parameter() -> list[Any]:
    return [torch.nn.Parameter(new(), requires_grad=False), new(2)]


def inference() -> list[Any]:
    with torch.inference_mode():
        return [torch.ones(2, 3), torch.zeros(1, 3)]


STRANGE = (
    *(overlapping, same_twice, expanded, turned, columns, stepped, conjugated, negative, subclass),
    *(parameter, inference),
)


@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
def test_strange_entries(make: Callable[[], list[Any]]) -> None:
    want = torch.cat([t.clone() for t in make()])
    want = want.resolve_conj().resolve_neg()
    got = goflat.cat_(make(), max_growth=LOTS)
    assert_bits(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
    kept = make()
    before = [t.detach().clone() for t in kept]
    goflat.cat_(list(kept), max_growth=LOTS).fill_(7)
    assert_all_bits([t.detach() for t in kept], before)


@pytest.mark.parametrize("pure", [False, True])
def test_leaves_that_require_grad(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pure:
        monkeypatch.setattr(_native, "_core", None)
    for leaf in (new().requires_grad_(), torch.nn.Parameter(new())):
        features = {"a": [new(2)], "b": [leaf]}
        before = leaf.detach().clone()
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(goflat.OwnershipError, match="key 'b', batch 0: got a leaf"):
                goflat.flatten_(features, max_growth=LOTS)
        assert features["b"][0] is leaf
        assert_bits(leaf.detach(), before)


def test_dispatch_modes() -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.extend(t for t in args if isinstance(t, torch.Tensor))
            return func(*args, **(kwargs or {}))

    seen: list[Tensor] = []
    features = job()
    want = answer(features)
    with Watching():
        flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits(list(flat), want)
    assert flat.plan.strategy == "stream"


def test_hostile_dicts_and_lists() -> None:
    class Counting(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)

        def clear(self) -> None:
            raise AssertionError("not emptied")

    class Mine(list[Any]):
        def clear(self) -> None:
            raise AssertionError("not emptied")

        def __setitem__(self, *_: Any) -> None:
            raise AssertionError("not written to")

    plain = job()
    want = answer(plain)
    features: Any = Counting(plain)
    plain.clear()
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_all_bits(answer(dict(features)), want)
    inner: dict[str, Any] = {key: Mine(entries) for key, entries in features.items()}
    kept = list(inner.values())
    del features
    assert_all_bits(list(goflat.flatten_(inner, max_growth=LOTS)), want)
    assert_all_bits(answer({str(i): list(x) for i, x in enumerate(kept)}), want)


# Code that runs during the call


@contextmanager
def during_the_call(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` at each function of goflat that is entered, as a profiler would."""

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("goflat"):
            sys.setprofile(None)
            act()
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def attempt(features: Any) -> Any:
    """Consume; None if the call was refused."""
    try:
        return goflat.flatten_(features, max_growth=LOTS)
    except goflat.OwnershipError:
        return None


@pytest.mark.parametrize("nth", range(0, 60, 2))
@pytest.mark.parametrize("how", ["tensor", "view", "alias", "list", "storage"])
def test_somebody_takes_hold_during_the_call(nth: int, how: str) -> None:
    """At whatever moment: what was got stays as it was, or the call could not give it away."""
    features = job()
    originals = {key: [t.clone() for t in entries] for key, entries in features.items()}
    want, count = answer(features), [0]
    got: list[Any] = []

    def grab() -> None:
        count[0] += 1
        if count[0] == nth and features and features["1"] and features["1"][0] is not None:
            t = features["1"][0]
            got.append(
                {
                    "tensor": lambda: t,
                    "view": lambda: t[1:],
                    "alias": t.detach,
                    "list": lambda: features["1"],
                    "storage": t.untyped_storage,
                }[how]()
            )

    with during_the_call(grab):
        flat = attempt(features)
    if flat is None:
        assert_all_bits(features["1"], originals["1"])
        assert_all_bits(features["0"], originals["0"])
        got.clear()
        flat = goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits([out.clone() for out in flat], want)
    for thing in got:
        if how == "view":
            assert_bits(thing, originals["1"][0][1:])
        elif how in ("tensor", "alias"):
            assert_bits(thing, originals["1"][0])


@pytest.mark.parametrize("nth", range(0, 60, 3))
@pytest.mark.parametrize("how", ["append", "pop", "replace", "clear", "add a key"])
def test_somebody_changes_containers_during_the_call(nth: int, how: str) -> None:
    features = job()
    want, count = answer(features), [0]
    taken: list[Any] = []

    def meddle() -> None:
        count[0] += 1
        if count[0] != nth or not features or not features["1"]:
            return
        if how == "append":
            features["1"].append(new())
        elif how == "pop":
            taken.append(features["1"].pop())
        elif how == "replace":
            features["1"][0] = new()
        elif how == "clear":
            features["1"].clear()
        else:
            features["2"] = [new(), new()]

    with during_the_call(meddle):
        flat = None
        with suppress(goflat.Error, RuntimeError):  # a dict that changed size during iteration
            flat = goflat.flatten_(features, max_growth=LOTS)
    if flat is not None and len(flat) == 2 and flat[0].shape == want[0].shape:
        assert_bits(flat[1].clone(), want[1])


def test_callbacks_of_entries_that_are_given_up() -> None:
    """They run between the steps, and may look at what is left."""
    features = parts([[4, 2], [3, 5]], order=5) | {"2": [new(3, 5), new(4, 6)]}
    others = {key: [weakref.ref(t) for t in features[key]] for key in "01"}
    originals = {key: [t.clone() for t in features[key]] for key in "01"}
    want, got = answer(features), []

    def look(_: Any) -> None:
        got.append({key: [t() for t in ts] for key, ts in others.items()})
        got.append({key: list(entries) for key, entries in features.items()})

    watch = [weakref.ref(t, look) for t in features["2"]]
    try:
        flat = goflat.flatten_(features, max_growth=LOTS)
    except goflat.OwnershipError as error:
        outputs = error.outputs  # type: ignore[attr-defined]
        assert all(o is None or torch.equal(o, w) for o, w in zip(outputs, want, strict=True))
    else:
        assert_all_bits([out.clone() for out in flat], want)
    for look_at in got:
        for key in "01":
            for now, then in zip(look_at.get(key, ()), originals[key], strict=False):
                assert now is None or torch.equal(now, then)
    del watch


def test_a_finalizer_that_resurrects() -> None:
    class Precious:
        """Keeps its tensor alive when it dies."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __del__(self) -> None:
            saved.append(self.tensor)

    saved: list[Tensor] = []
    features = job()
    features["0"][0].owner = Precious(features["0"][1])  # type: ignore[attr-defined]
    before, want = features["0"][1].clone(), answer(features)
    assert_all_bits(list(goflat.flatten_(features, max_growth=LOTS)), want)
    assert_bits(saved[0], before)


def test_a_callback_of_the_garbage_collector() -> None:
    features = job()
    originals = {key: [t.clone() for t in entries] for key, entries in features.items()}
    want, got = answer(features), []

    def grab(phase: str, _: Any) -> None:
        if phase == "start" and features and all(t is not None for t in features["0"]):
            got[:] = features["0"]

    old = gc.get_threshold()
    gc.callbacks.append(grab)
    gc.set_threshold(1)
    try:
        flat = attempt(features)
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(grab)
    if flat is not None:
        assert_all_bits([out.clone() for out in flat], want)
    assert got
    assert_all_bits(got, originals["0"])


def test_a_warning_filter_that_takes_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    features = parts([[4, 2], [3, 5]], order=5) | {"2": [new(30, 5), new(40, 6)]}
    want, got = answer(features), []
    originals = [t.clone() for t in features["0"]]
    monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: got.extend(features["0"]))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            flat = goflat.flatten_(features)
        except goflat.OwnershipError as error:
            assert "during the call" in str(error)
        else:
            assert_all_bits([out.clone() for out in flat], want)
    assert got
    assert_all_bits(got, originals)


def test_an_interrupt_leaves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    features = job()
    want = answer(features)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    core: Any = _native._core
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(core, "bridge_RunStep", interrupt)
        goflat.flatten_(features, max_growth=LOTS)
    assert_all_bits([out.clone() for out in goflat.flatten_(features, max_growth=0)], want)
