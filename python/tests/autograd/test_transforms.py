"""Forward mode and torch.func: what torch.cat gives, by torch.cat itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import goflat
from helpers import child
from helpers.compare import assert_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(10.0, 13.0).reshape(1, 3)


def by_flatten(a: Tensor, b: Tensor) -> Tensor:
    return goflat.flatten({"a": [a], "b": [b]})[0]


def by_packed(a: Tensor, b: Tensor) -> Tensor:
    flat = goflat.flatten({"a": [a, b], "b": [b, b]}, packed=True)
    assert flat.buffer is not None
    return (flat[0] + flat.buffer[: len(flat[0])]) / 2


def by_cat(a: Tensor, b: Tensor) -> Tensor:
    return goflat.cat([a, b])


def by_dim(a: Tensor, b: Tensor) -> Tensor:
    return goflat.cat([a.T, b.T], dim=1).T


def by_dtype(a: Tensor, b: Tensor) -> Tensor:
    return goflat.cat([a, b], dtype=torch.float64).float()


def consuming(a: Tensor, b: Tensor) -> Tensor:
    entries = [a * 1, b * 1]
    return goflat.cat_(entries, max_growth=1 << 20)


WAYS = [by_flatten, by_packed, by_cat, by_dim, by_dtype, consuming]


def by_torch(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b])


def powers(join: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function with second derivatives that differ from row to row."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        joined = join(a, b)
        return (joined**3 * torch.arange(1.0, 1 + joined.numel()).view_as(joined)).sum()

    return function


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor]], Any]] = {
    "jvp": lambda f: jvp(f, (A, B), (B.expand(2, 3), A[:1])),
    "vjp": lambda f: vjp(f, A, B)[1](torch.ones(3, 3)),
    "vmap": lambda f: vmap(f)(A.expand(4, 2, 3), B * torch.arange(4.0).view(4, 1, 1)),
    "vmap over one of two": lambda f: vmap(f, in_dims=(None, 0))(A, B.expand(4, 1, 3)),
    "vmap over the last": lambda f: vmap(f, in_dims=(2, 2), out_dims=1)(
        A.unsqueeze(2).expand(2, 3, 4), B.unsqueeze(2).expand(1, 3, 4)
    ),
    "vmap of vmap": lambda f: vmap(vmap(f))(A.expand(2, 4, 2, 3), B.expand(2, 4, 1, 3)),
    "grad": lambda f: grad(powers(f), (0, 1))(A, B),
    "grad of grad": lambda f: grad(lambda a, b: grad(powers(f))(a, b).sum(), (0, 1))(A, B),
    "vmap of grad": lambda f: vmap(grad(powers(f)))(A.expand(4, 2, 3), B.expand(4, 1, 3)),
    "jacrev": lambda f: jacrev(f, (0, 1))(A, B),
    "jacfwd": lambda f: jacfwd(f, (0, 1))(A, B),
    "hessian": lambda f: hessian(powers(f), (0, 1))(A, B),
    "functionalize": lambda f: functionalize(f)(A, B),
    "vmap of jvp": lambda f: vmap(lambda a: jvp(lambda x: f(x, B), (a,), (a,)))(A.expand(4, 2, 3)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func(transform: str, way: Callable[..., Tensor]) -> None:
    run = TRANSFORMS[transform]
    same(run(way), run(by_torch))


@pytest.mark.parametrize("way", WAYS)
def test_duals(way: Callable[..., Tensor]) -> None:
    def run(join: Callable[..., Tensor]) -> Any:
        with forward_ad.dual_level():
            a = forward_ad.make_dual(A, torch.full_like(A, 2))
            return forward_ad.unpack_dual(join(a * a, B * 3))

    same(run(way), run(by_torch))


def test_duals_among_plain_entries_of_other_batches() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(B, B + 1)
        flat = goflat.flatten({"a": [A, A], "b": [B, dual]})
        assert forward_ad.unpack_dual(flat[0]).tangent is None
        assert_bits(forward_ad.unpack_dual(flat[1]).tangent[2:], B + 1)


def test_forward_over_reverse() -> None:
    def run(join: Callable[..., Tensor]) -> Any:
        a = A.clone().requires_grad_()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a, torch.ones_like(A))
            (first,) = torch.autograd.grad(powers(join)(dual, B), a, create_graph=True)
            return forward_ad.unpack_dual(first)

    same(run(by_flatten), run(by_torch))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("strategy", "vectorize"),
    [("reverse-mode", False), ("reverse-mode", True), ("forward-mode", True)],
)
def test_jacobians(way: Callable[..., Tensor], strategy: str, vectorize: bool) -> None:
    got, want = (
        torch.autograd.functional.jacobian(f, (A, B), strategy=strategy, vectorize=vectorize)
        for f in (way, by_torch)
    )
    same(got, want)


def test_gradients_in_batches() -> None:
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    incoming = torch.arange(36.0).reshape(4, 3, 3)
    got, want = (
        torch.autograd.grad(f(a, b), (a, b), incoming, is_grads_batched=True)
        for f in (by_cat, by_torch)
    )
    same(got, want)


@pytest.mark.filterwarnings("ignore:Please use `torch.vmap`")  # torch 2.6 to itself
def test_forward_gradcheck() -> None:
    entries = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (1, 3)]

    def function(*parts: Tensor) -> Tensor:
        return goflat.flatten({k: [part] for k, part in enumerate(parts)})[0]

    options = {"check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(function, entries, check_batched_forward_grad=True, **options)
    assert torch.autograd.gradgradcheck(function, entries, check_fwd_over_rev=True)


def test_results_inside_may_be_changed_as_those_of_torch_cat() -> None:
    """One made of constants is new to the transform: no captured tensor, which may not change."""

    def run(join: Callable[..., Tensor]) -> Tensor:
        def function(x: Tensor) -> Tensor:
            return join(A, B).mul_(x).sum()

        return grad(function)(torch.ones(3))

    assert_bits(run(by_cat), run(by_torch))


OUT_WATCHED = "requires grad or has a tangent"


def test_out_where_tangents_are() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, A)
        with pytest.raises(goflat.OwnershipError, match=f"key 'b', batch 0: .*{OUT_WATCHED}"):
            goflat.flatten({"a": [B], "b": [dual]}, out=[torch.empty(3, 3)])
        with pytest.raises(goflat.OwnershipError, match=f"an out that {OUT_WATCHED}"):
            goflat.flatten({"a": [A]}, out=[dual])


@pytest.mark.parametrize("transform", [vmap, grad])
def test_out_inside_torch_func(transform: Callable[..., Any]) -> None:
    out = torch.zeros(2, 3)

    def function(t: Tensor) -> Tensor:
        for entry in (t, B[0]):
            with pytest.raises(goflat.OwnershipError, match=r"an out inside torch\.func"):
                goflat.flatten({"a": [entry], "b": [entry]}, out=[out.new_empty(6)])
        return t.sum()

    transform(function)(torch.zeros(3, 3) if transform is vmap else torch.zeros(3))
    assert_bits(out, torch.zeros(2, 3))


def test_errors_inside_are_those_of_outside() -> None:
    def function(t: Tensor) -> Tensor:
        with pytest.raises(goflat.ShapeError, match="key 'b', batch 0"):
            goflat.flatten({"a": [t], "b": [t[:, :2]]})
        with pytest.raises(goflat.DTypeError, match="key 'b', batch 0"):
            goflat.flatten({"a": [t], "b": [t.double()]})
        return t

    vmap(function)(A.expand(4, 2, 3))


def test_wrappers_that_have_left_their_transform() -> None:
    left = []
    grad(lambda t: left.append(t) or t.sum())(A)
    got, want = goflat.cat([left[0], A]), torch.cat([left[0], A])
    assert_bits(got, want)


@pytest.mark.parametrize(
    "call",
    [
        "goflat.flatten({'a': [a], 'b': [b]})[0]",
        "goflat.cat([a, b], dtype=torch.float64).float()",
        "goflat.cat_([a * 1, b * 1], max_growth=1 << 20)",
    ],
)
def test_first_use_inside_a_transform(engine: str, call: str) -> None:
    """What goflat learns from tensors of its own is not learnt from those of a transform."""
    code = f"""
    import torch, goflat
    a, b = torch.ones(2, 3), torch.ones(1, 3)
    join = lambda a, b: {call}
    for run in (torch.func.grad(lambda a, b: join(a, b).square().sum()), join):
        print(run(a, b).sum().item())
    """
    assert child.fork(code, engine=engine) == "12.0\n9.0\n"
