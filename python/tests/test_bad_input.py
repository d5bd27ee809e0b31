"""Tensors that are more, or less, than memory: joined as torch.cat joins them, or refused by name.

One table for all calls. Whatever happens, nothing that was handed in changes.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import goflat
from helpers.jobs import DTYPES, tensor

pytestmark = pytest.mark.usefixtures("engine")

LOTS = 1 << 30  # bytes that consuming calls may grow
SHAPE = (2, 4)


class Named(torch.Tensor):
    """A subclass that keeps to torch's own __torch_function__."""


class Logged(torch.Tensor):
    """A subclass with a __torch_function__ of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Deaf(torch.Tensor):
    """A wrapper whose __torch_dispatch__ knows nothing of torch.cat."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type[Deaf], inner: torch.Tensor) -> Deaf:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Deaf(args[0].inner)
        raise NotImplementedError(f"{func} is unknown here")


def functional_subclass() -> Any:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(torch.ones(SHAPE))


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return tensor(SHAPE)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)], layout=layout)


def freed(whole: torch.Tensor) -> torch.Tensor:
    """Give the memory of a tensor back, as sharding libraries do; torch.cat crashes then."""
    whole.untyped_storage().resize_(0)
    return whole


def lazy() -> torch.Tensor:
    return torch._lazy_clone(tensor(SHAPE).clone())  # type: ignore[attr-defined, no-any-return]


MODE = FakeTensorMode()
PLAIN, SELF = "plain memory", "as torch.cat has it"

# What each is made by, and what becomes of it: joined as plain memory, by torch.cat, or refused.
KINDS: dict[str, tuple[Any, str]] = {
    "parameter": (lambda: torch.nn.Parameter(tensor(SHAPE), requires_grad=False), PLAIN),
    "buffer": (lambda: torch.nn.Buffer(tensor(SHAPE)), PLAIN),
    "inference": (inference, PLAIN),
    "conjugate view": (lambda: tensor(SHAPE, torch.complex64).conj(), PLAIN),
    "negative view": (lambda: tensor(SHAPE, torch.complex64).conj().imag, PLAIN),
    "lazy clone": (lazy, PLAIN),
    "freed": (lambda: freed(tensor(SHAPE).clone()), "a tensor whose memory was freed"),
    "freed part": (lambda: freed(tensor((3, 4)).clone()[1:]), "whose memory was freed"),
    "freed column": (lambda: freed(tensor((2, 9)).clone()[:, 1:5]), "whose memory was freed"),
    "freed parameter": (
        lambda: freed(torch.nn.Parameter(tensor(SHAPE).clone(), requires_grad=False)),
        "whose memory was freed",
    ),
    "freed conjugate": (
        lambda: freed(tensor(SHAPE, torch.complex64).clone()).conj(),
        "whose memory was freed",
    ),
    "odd bools": (lambda: tensor((2, 4), torch.uint8).view(torch.bool), PLAIN),
    "transposed": (lambda: tensor((4, 2)).t(), PLAIN),
    "expanded": (lambda: tensor((1, 4)).expand(2, 4), PLAIN),
    **{str(dtype): (lambda dtype=dtype: tensor(SHAPE, dtype), PLAIN) for dtype in DTYPES},
    "subclass": (lambda: tensor(SHAPE).as_subclass(Named), SELF),
    "torch function": (lambda: tensor(SHAPE).as_subclass(Logged), SELF),
    "torch dispatch": (lambda: TwoTensor(tensor(SHAPE), tensor(SHAPE, seed=1)), SELF),
    "FakeTensor": (lambda: MODE.from_tensor(tensor(SHAPE)), SELF),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(SHAPE)), SELF),
    "functional subclass": (functional_subclass, "tensors that torch.cat does not"),
    "torch dispatch without cat": (lambda: Deaf(tensor(SHAPE)), "tensors that torch.cat does not"),
    "meta": (lambda: torch.zeros(SHAPE, device="meta"), "a meta tensor"),
    "ZeroTensor": (lambda: torch._efficientzerotensor(SHAPE), "a ZeroTensor"),
    "sparse COO": (lambda: torch.ones(SHAPE).to_sparse(), "a sparse tensor"),
    "sparse CSR": (lambda: torch.ones(SHAPE).to_sparse_csr(), "a sparse tensor"),
    "sparse CSC": (lambda: torch.ones(SHAPE).to_sparse_csc(), "a sparse tensor"),
    "sparse BSR": (lambda: torch.ones(SHAPE).to_sparse_bsr((1, 2)), "a sparse tensor"),
    "mkldnn": (lambda: torch.ones(SHAPE).to_mkldnn(), "an mkldnn tensor"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(SHAPE), 0.1, 0, torch.quint8),
        "a quantized tensor",
    ),
    "nested strided": (lambda: nested(torch.strided), "a nested tensor"),
    "nested jagged": (lambda: nested(torch.jagged), "a nested tensor"),
    "uninitialized": (torch.nn.parameter.UninitializedParameter, "an uninitialized parameter"),
    "no dimension": (lambda: torch.ones(()), "()"),
}


class Call(NamedTuple):
    """A call of goflat with two entries: the second, at key "b" and batch 0, is the odd one."""

    run: Any
    place: tuple[Any, Any]  # key and batch of its errors


CALLS: dict[str, Call] = {
    "flatten": Call(lambda x: goflat.flatten({"a": [x[0]], "b": [x[1]]})[0], ("b", 0)),
    "packed": Call(lambda x: goflat.flatten({"a": [x[0]], "b": [x[1]]}, packed=True)[0], ("b", 0)),
    "batches": Call(lambda x: goflat.flatten([{"a": x[0], "b": x[1]}])[0], ("b", 0)),
    "cat": Call(lambda x: goflat.cat([x[0], x[1]]), (None, 1)),
}
CONSUMING: dict[str, Call] = {
    "flatten_": Call(lambda x: goflat.flatten_(x, max_growth=LOTS)[0], ("b", 0)),
    "cat_": Call(lambda x: goflat.cat_(x, max_growth=LOTS), (None, 1)),
}


def made(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of prototypes
        return KINDS[kind][0]()


def bits(t: torch.Tensor) -> list[int]:
    """Return the memory of a tensor that has some, in row-major order."""
    plain = t.detach().resolve_conj().resolve_neg()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = plain.view(integers.get(plain.element_size(), plain.dtype))
    return (
        torch.view_as_real(plain).view(torch.int64).tolist()
        if plain.is_complex()
        else (plain.tolist())
    )


def joined(entries: list[Any]) -> list[int]:
    return bits(entries[0]) + bits(entries[1])


def check_like(got: Any, want: Any) -> None:
    """Assert that a result is what torch.cat gives, of whatever class that is."""
    assert type(got) is type(want)
    assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, want.device)
    if isinstance(got, TwoTensor):
        assert got.a.equal(want.a)
        assert got.b.equal(want.b)
    elif type(got) in (Named, Logged):
        plain = torch.Tensor
        assert bits(got.as_subclass(plain)) == bits(want.as_subclass(plain))
    elif not isinstance(got, FakeTensor):
        assert bool((got == want).all())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_copy(kind: str, call: Call) -> None:
    entries, fate = [made(kind), made(kind)], KINDS[kind][1]
    if fate == PLAIN:
        got = call.run(entries)
        assert type(got) is torch.Tensor
        assert bits(got) == joined(entries)
    elif fate == SELF:
        check_like(call.run(entries), torch.cat(entries))
    else:
        check_refused(call, [torch.ones(SHAPE), entries[1]], fate)


def check_refused(call: Call, entries: list[Any], fate: str) -> None:
    with pytest.raises(goflat.Error) as caught:
        call.run(entries)
    assert fate in (caught.value.got or "")
    if fate.startswith("tensors"):  # torch.cat itself cannot tell which
        return
    assert (caught.value.key, caught.value.batch) == call.place
    assert bool((entries[0] == 1).all())


@pytest.mark.parametrize("call", CONSUMING.values(), ids=CONSUMING)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_consume(kind: str, call: Call) -> None:
    odd, fate = [made(kind), made(kind)], KINDS[kind][1]
    if fate not in (PLAIN, SELF):
        odd[0] = torch.ones(SHAPE)
    given: Any = list(odd) if call.place[0] is None else {"a": [odd[0]], "b": [odd[1]]}
    if fate == PLAIN:
        want = joined(odd)
        assert bits(call.run(given)) == want
        assert not given
        assert joined(odd) == want  # held here, so not written over
    elif fate == SELF:
        check_like(call.run(given), torch.cat(odd))
        assert not given
    else:
        check_refused(Call(lambda _: call.run(given), call.place), odd, fate)
        left = given if isinstance(given, list) else [given["a"][0], given["b"][0]]
        assert all(a is b for a, b in zip(left, odd, strict=True))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_plans(kind: str, inplace: bool) -> None:
    odd, fate = made(kind), KINDS[kind][1]
    copied = fate == "a ZeroTensor" or fate.endswith("memory was freed")
    shapes_do = fate == "a meta tensor" or (copied and not inplace)
    if fate in (PLAIN, SELF) or shapes_do:
        nbytes = odd.numel() * odd.element_size()
        plan = goflat.plan({"a": [odd]}, inplace=inplace)
        assert plan.nbytes == nbytes
        worst = plan.growth if isinstance(plan.growth, int) else plan.growth[1]
        assert worst == nbytes
    elif not fate.startswith("tensors"):
        with pytest.raises(goflat.Error) as caught:
            goflat.plan({"b": [torch.ones(SHAPE)], "a": [odd]}, inplace=inplace)
        assert fate in (caught.value.got or "")
        assert (caught.value.key, caught.value.batch) == ("a", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_arenas(kind: str) -> None:
    odd, fate = made(kind), KINDS[kind][1]
    if fate == PLAIN:
        arena = goflat.Arena(goflat.Layout.of({"a": [odd]}))
        arena.put("a", 0, odd)
        assert bits(arena.flat[0]) == bits(odd)
        return
    arena = goflat.Arena(goflat.Layout.of({"a": [torch.ones(SHAPE)]}))
    arena["a"][0][:] = 5
    if kind in ("subclass", "torch function"):
        arena.put("a", 0, odd)
        assert bits(arena.flat[0]) == bits(odd.as_subclass(torch.Tensor))
        return
    with pytest.raises(goflat.Error) as caught:
        arena.put("a", 0, odd)
    assert (caught.value.key, caught.value.batch) == ("a", 0)
    assert bool((arena.flat[0] == 5).all())


@pytest.mark.parametrize("part", [slice(None), slice(1, None)], ids=["whole", "part"])
def test_an_out_without_memory(part: slice) -> None:
    entries = [torch.ones(SHAPE), torch.ones(SHAPE)]
    out = freed(torch.zeros(4 + (part.start or 0), 4)[part])
    for write in (
        lambda: goflat.cat(entries, out=out),
        lambda: goflat.flatten({"a": entries}, out=out, packed=True),
        lambda: goflat.flatten({"a": entries[:1], "b": entries[1:]}, out=[out]),
    ):
        with pytest.raises(goflat.DeviceError, match="whose memory was freed"):
            write()


def test_an_empty_entry_needs_no_memory() -> None:
    nothing = freed(torch.zeros(0, 4))
    assert bits(goflat.cat([torch.ones(SHAPE), nothing])) == bits(torch.ones(SHAPE))


def test_inside_a_fake_mode() -> None:
    with FakeTensorMode():
        entries = [torch.ones(2, 3), torch.ones(4, 3)]
        for got in (
            goflat.cat(entries),
            goflat.flatten({"a": entries[:1], "b": entries[1:]})[0],
            goflat.flatten({"a": entries[:1], "b": entries[1:]}, packed=True).buffer,
            goflat.flatten({"a": entries[:1], "b": entries[1:]}, dtype=torch.float64)[0],
        ):
            assert isinstance(got, FakeTensor)
            assert got.shape == (6, 3)
        out = torch.empty(6, 3)
        assert goflat.cat(entries, out=out) is out
        with pytest.raises(goflat.ShapeError):
            goflat.cat([torch.ones(2, 3), torch.ones(2, 4)])


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_torch_cat(mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def join(a: torch.Tensor, b: torch.Tensor) -> Any:
        return goflat.cat([a, b]), goflat.flatten({"a": [a], "b": [b]})[0]

    a, b = tensor((2, 3)), tensor((5, 3))
    graph = make_fx(join, tracing_mode=mode)(a, b)
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == [torch.ops.aten.cat.default] * 2
    assert bits(graph(b, a)[1] if mode == "symbolic" else graph(a, b)[1]) == (
        joined([b, a]) if mode == "symbolic" else joined([a, b])
    )


def test_aot_function_sees_torch_cat() -> None:
    from functorch.compile import aot_function, nop

    joins: Any = aot_function(lambda a, b: goflat.flatten({"a": [a], "b": [b]})[0] * 2, nop)
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(1, 3)
    got = joins(a, b)
    got.sum().backward()
    assert bool((got == 2).all())
    assert bool((a.grad == 2).all())


def test_dtensors() -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
            a = distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])
            for got in (goflat.cat([a, a]), goflat.flatten({"a": [a], "b": [a]})[0]):
                assert isinstance(got, DTensor)
                assert got.shape == (4, 3)
                assert bool((got.to_local() == 1).all())
        finally:
            distributed.destroy_process_group()


def test_a_mode_that_only_watches_changes_nothing() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    entries = [tensor((2, 4)), tensor((3, 4))]
    with FlopCounterMode(display=False), nullcontext():
        assert bits(goflat.cat(entries)) == joined(entries)
