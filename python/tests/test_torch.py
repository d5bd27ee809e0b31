"""Tensors that are more than plain data, and torch's modes and compilers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import goflat
from goflat import _torch
from helpers import dynamo
from helpers.compare import assert_all_bits, assert_bits
from helpers.jobs import job, oracle, ragged, tensor

pytestmark = pytest.mark.usefixtures("engine")


def quietly(make: Any) -> Any:
    """Return a function that calls `make` and hears none of torch's prototype warnings."""

    def made() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)], layout=layout)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.quint8)


REFUSED = {
    "meta": (lambda: torch.zeros(2, 3, device="meta"), goflat.DeviceError, "a meta tensor"),
    "ZeroTensor": (
        lambda: torch._efficientzerotensor(2, 3),
        goflat.DeviceError,
        "a ZeroTensor",
    ),
    "sparse COO": (
        lambda: torch.zeros(2, 3).to_sparse(),
        goflat.DTypeError,
        "a sparse tensor",
    ),
    "sparse CSR": (
        lambda: torch.zeros(2, 3).to_sparse_csr(),
        goflat.DTypeError,
        "a sparse tensor",
    ),
    "sparse CSC": (
        lambda: torch.zeros(2, 3).to_sparse_csc(),
        goflat.DTypeError,
        "a sparse tensor",
    ),
    "sparse BSR": (
        lambda: torch.zeros(2, 4).to_sparse_bsr((1, 2)),
        goflat.DTypeError,
        "a sparse tensor",
    ),
    "sparse BSC": (
        lambda: torch.zeros(2, 4).to_sparse_bsc((1, 2)),
        goflat.DTypeError,
        "a sparse tensor",
    ),
    "mkldnn": (lambda: torch.zeros(2, 3).to_mkldnn(), goflat.DTypeError, "an mkldnn tensor"),
    "quantized": (quantized, goflat.DTypeError, "a quantized tensor"),
    "nested strided": (
        lambda: nested(torch.strided),
        goflat.DTypeError,
        "a nested tensor",
    ),
    "nested jagged": (lambda: nested(torch.jagged), goflat.DTypeError, "a nested tensor"),
    "uninitialized": (
        torch.nn.parameter.UninitializedParameter,
        goflat.DTypeError,
        "an uninitialized parameter",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_by_name(case: Any) -> None:
    make, error, name = case
    odd = quietly(make)()
    for features in {"a": [odd]}, {"a": [torch.zeros(2, 3)], "b": [odd]}:
        with pytest.raises(error) as caught:
            goflat.flatten(features)
        assert caught.value.got == name
        assert (caught.value.key, caught.value.batch) == (list(features)[-1], 0)
    with pytest.raises(error):
        goflat.cat([odd, odd])
    with pytest.raises(error):
        goflat.flatten({"a": [odd]}, packed=True)


def test_tensors_of_outside_work_inside_torch_func() -> None:
    constant = tensor((2, 3))

    def function(t: torch.Tensor) -> torch.Tensor:
        return t.sum() * goflat.cat([constant, constant]).sum()

    want = torch.full((4,), float(2 * constant.sum()))
    assert_bits(torch.func.grad(function)(torch.ones(4)), want)


def test_refusal_of_plain_data() -> None:
    z = tensor((2, 2), torch.complex64)
    for t in (
        torch.zeros(2),
        torch.zeros(2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
        z.conj(),
        z.conj().imag,
        torch.zeros(0),
        torch.zeros(()),
    ):
        assert _torch.refusal(t) is None
        assert _torch.refusal(t) is None  # by its dispatch keys, now known


def test_resolve() -> None:
    z = tensor((2, 2), torch.complex64)
    for t in z, z.conj(), z.conj().imag, torch.nn.Parameter(z):
        plain = _torch.resolve(t)
        assert_bits(plain, t.detach())
        assert type(plain) is torch.Tensor
        assert not (plain.is_conj() or plain.is_neg() or plain.requires_grad)
    assert _torch.resolve(z).data_ptr() == z.data_ptr()


# Parameters, subclasses


def test_parameters_are_plain_data() -> None:
    weight = torch.nn.Parameter(tensor((2, 3)))
    with torch.no_grad():
        (flat,) = goflat.flatten({"a": [weight], "b": [tensor((1, 3))]})
    assert type(flat) is torch.Tensor
    assert_bits(flat, torch.cat([weight.detach(), tensor((1, 3))]))
    (flat,) = goflat.flatten({"a": [weight]})
    assert flat.requires_grad


def test_buffers_are_plain_data() -> None:
    assert_bits(goflat.cat([torch.nn.Buffer(tensor((2, 3)))]), tensor((2, 3)))


class Labelled(torch.Tensor):
    """A subclass with nothing but a name."""


@pytest.mark.parametrize("packed", [False, True])
def test_subclass_gives_what_torch_cat_gives(packed: bool) -> None:
    a = tensor((2, 3)).as_subclass(Labelled)
    features = {"a": [a], "b": [tensor((1, 3))]}
    (got,) = goflat.flatten(features, packed=packed)
    assert type(got) is Labelled
    assert_bits(got.as_subclass(torch.Tensor), torch.cat([tensor((2, 3)), tensor((1, 3))]))


@pytest.mark.parametrize("packed", [False, True])
def test_wrapper_subclass_gives_what_torch_cat_gives(packed: bool) -> None:
    two = TwoTensor(tensor((2, 3)), tensor((2, 3), seed=1))
    (got,) = goflat.flatten({"a": [two], "b": [two]}, packed=packed)
    assert type(got) is TwoTensor
    assert_bits(got.a, torch.cat([two.a, two.a]))
    assert_bits(got.b, torch.cat([two.b, two.b]))


# Modes


class Watch(TorchDispatchMode):
    """Sees every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_dispatch_mode_sees_the_job() -> None:
    with Watch() as watch:
        flat = goflat.flatten(ragged())
    assert_all_bits(flat, oracle(ragged()))
    assert watch.seen.count("cat") == 2


def test_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        flat = goflat.flatten({"a": [torch.zeros(2, 3, device="cpu")]}, packed=True)
        assert flat.offsets(0).device.type == "cpu"
    assert flat[0].device.type == "cpu"
    assert goflat.flatten(ragged(), packed=True).buffer.device.type == "cpu"  # type: ignore[union-attr]


def test_default_dtype_does_not_matter() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert_all_bits(goflat.flatten(ragged()), oracle(ragged()))
    finally:
        torch.set_default_dtype(torch.float32)


def test_inference_mode() -> None:
    with torch.inference_mode():
        made_inside = ragged()
        assert_all_bits(goflat.flatten(made_inside), oracle(made_inside))
        assert goflat.cat([tensor((1, 2))]).is_inference()
        assert goflat.flatten(made_inside, packed=True)[0].is_inference()
    assert_all_bits(goflat.flatten(made_inside), oracle(made_inside))
    assert not goflat.flatten(made_inside)[0].is_inference()


def test_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_all_bits(goflat.flatten(ragged()), oracle(ragged()))


def test_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert_all_bits(goflat.flatten(ragged(), packed=True), oracle(ragged()))
    finally:
        torch.use_deterministic_algorithms(False)


def test_writing_counts_as_a_new_version() -> None:
    out = [torch.zeros(5, 3), torch.zeros(7, 3)]
    weight = torch.ones(5, 3, requires_grad=True)
    loss = (weight * out[0]).sum()  # saves out[0] for the backward pass
    goflat.flatten(ragged(), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Compilers and tracers


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", [{}, {"packed": True}, {"dtype": torch.float64}], ids=str)
def test_compile_full_graph(backend: str, options: dict[str, Any]) -> None:
    def function(features: Any) -> Any:
        flat = goflat.flatten(features, **options)
        return [batch * 2 for batch in flat], goflat.cat(list(flat))

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=dynamo.takes_flat())
    for features in ragged(), job([[1, 3], [2, 2], [5, 1]]):
        got, joined = compiled(features)
        want, whole = function(features)
        assert_all_bits(got, want)
        assert_bits(joined, whole)


def test_compile_other_forms() -> None:
    def function(batches: Any, dim: int) -> Any:
        flat = goflat.flatten(batches, dim=dim)
        return flat.unflatten()["a"][0] + 1, flat[0]

    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=dynamo.takes_flat())
    batches = [{"a": tensor((2, 3)), "b": tensor((2, 3), seed=1)}]
    for dim in 0, -1:
        part, whole = compiled(batches, dim)
        assert_bits(part, batches[0]["a"] + 1)
        assert_bits(whole, torch.cat([batches[0]["a"], batches[0]["b"]], dim))


def test_compile_is_differentiable() -> None:
    torch.compiler.reset()
    features = {key: [t.requires_grad_() for t in ts] for key, ts in ragged().items()}
    compiled = torch.compile(lambda x: goflat.flatten(x)[1].sum(), backend="aot_eager")
    compiled(features).backward()
    assert_bits(features["2"][1].grad, torch.ones(2, 3))
    unused = features["2"][0].grad
    assert unused is None or not unused.any()  # zeros where the graph breaks


def test_export() -> None:
    if not dynamo.takes_flat():
        pytest.skip("torch.export needs the whole graph, which Dynamo of this torch does not see")

    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return goflat.flatten({"a": [a], "b": [b]})[0]

    a, b = tensor((2, 3)), tensor((1, 3))
    program = torch.export.export(Model(), (a, b))
    assert_bits(program.module()(a, b), torch.cat([a, b]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_jit_trace_records_the_job() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = goflat.flatten({"a": [a, b], "b": [b, a]}, packed=True)
        assert flat.layout.rows["b"] in [(1, 2), (5, 4)]
        return goflat.flatten({"a": [a], "b": [b]})[0], flat[0], flat[1]

    traced = torch.jit.trace(function, (tensor((2, 3)), tensor((1, 3))))
    a, b = tensor((4, 3), seed=2), tensor((5, 3), seed=3)
    assert_all_bits(list(traced(a, b)), [torch.cat(pair) for pair in ([a, b], [a, b], [b, a])])


def test_make_fx_records_the_job() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b = tensor((2, 3)), tensor((1, 3))
    graph = make_fx(lambda a, b: goflat.cat([a, b]))(a, b)
    assert_bits(graph(a + 1, b), torch.cat([a + 1, b]))
