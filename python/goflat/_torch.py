"""What only torch knows: which tensors are plain data, how to join them, and autograd.

Imported at the first tensor that goflat meets, never before.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from . import _tracing
from ._errors import make, of_memory
from ._overlap import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ._features import Features
    from ._kinds import Arrays, Place, Refusal
    from ._layout import Layout

_tracing.by_dynamo = torch.compiler.is_dynamo_compiling

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WANT = {"DEVICE": "a tensor with memory to read", "DTYPE": "a plain strided tensor"}

# Why a tensor cannot be joined, in an order in which each test may be asked: some layouts have no
# answer to the questions below them.
_REFUSALS: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (torch.nn.parameter.is_lazy, "DTYPE", "an uninitialized parameter"),
    (lambda t: t.is_nested, "DTYPE", "a nested tensor"),
    (lambda t: t.is_mkldnn, "DTYPE", "an mkldnn tensor"),
    (lambda t: t.layout is not torch.strided, "DTYPE", "a sparse tensor"),
    (lambda t: t.is_quantized, "DTYPE", "a quantized tensor"),
    (lambda t: t.is_meta and not _is_fake(t), "DEVICE", "a meta tensor"),
    (lambda t: t._is_zerotensor(), "DEVICE", "a ZeroTensor"),
)

_plain_keys: set[int] = set()  # dispatch key sets of tensors that passed every test above


def refusal(tensor: Tensor) -> Refusal | None:
    """Say why the data of `tensor` cannot be joined.

    All that is refused shows in the dispatch key set; a set that has passed once is remembered, so
    a plain tensor costs one look-up.

    Returns
    -------
    (code, got, want) or None
        ``"DEVICE"`` where there is no memory to read, ``"DTYPE"`` where there is more to the tensor
        than its memory. None for plain data, which views with the conjugate or negative bit
        are too: see `resolve`; and for what `needs_cat` tells.
    """
    plain = type(tensor) in _PLAIN
    keys = torch._C._dispatch_keys(tensor).raw_repr() if plain else 0
    if keys in _plain_keys:
        return None
    for test, code, got in _REFUSALS:
        if test(tensor):
            return code, got, _WANT[code]
    if plain and not _transforming() and not _is_wrapped(tensor):
        _plain_keys.add(keys)
    return None


def memory_refusal(tensor: Tensor) -> Refusal | None:
    """Say that the memory of a plain `tensor` was freed, as sharding libraries do; else None."""
    if tensor.untyped_storage().nbytes() or not tensor.numel():
        return None
    return "DEVICE", "a tensor whose memory was freed", _WANT["DEVICE"]


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_transforming = torch._C._are_functorch_transforms_active


def _is_fake(tensor: Tensor) -> bool:
    """Report whether a tracer made `tensor`, in whose name `torch.cat` is to be called."""
    return _is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor")


def needs_cat(tensor: Tensor) -> bool:
    """Report whether nothing but `torch.cat` joins `tensor` right, whatever its memory.

    Tensors inside torch.func, those of functionalization, and duals of forward mode, whose tangents
    have to be joined too.
    """
    return _is_wrapped(tensor) or is_dual(tensor) or torch._is_functional_tensor(tensor)


def is_dual(tensor: Tensor) -> bool:
    """Report whether forward mode follows `tensor`."""
    if forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def resolve(tensor: Tensor) -> Tensor:
    """Return the values of `tensor` as plain memory: no parameter, no conjugate or negative bit.

    The result shares the memory of `tensor` where that holds its values, else it is a copy.
    """
    return tensor.detach().resolve_conj().resolve_neg()


def arrays_of(entries: list[Any]) -> Arrays:
    """Return how to join `entries`, tensors of any class."""
    if not set(map(type, entries)) <= set(_PLAIN):
        return ByCat()
    if _transforming() or torch._C._len_torch_dispatch_stack() or any(map(needs_cat, entries)):
        return ByCat()
    return Plain()


class Plain:
    """Joins plain tensors with `torch.cat`, into outputs that are always contiguous."""

    def load(self, entries: list[Any], place: Place) -> list[Any]:
        """Return `entries`: they are tensors already."""
        return entries

    def refusal(self, entry: Tensor) -> Refusal | None:
        """Say why the data of `entry` cannot be copied as it is."""
        return refusal(entry) or memory_refusal(entry)

    def guarded(self, out: Tensor) -> str | None:
        """Refuse what torch would not write to, or would write to in another form."""
        if out.is_conj() or out.is_neg():
            return "an out with the conjugate or negative bit"
        if out.is_inference() and not torch.is_inference_mode_enabled():
            return "an out made in inference mode, outside of it"
        return None

    def differentiable(self, array: Tensor) -> bool:
        """Report whether autograd, backward or forward, watches what is done with `array`."""
        return (array.requires_grad and torch.is_grad_enabled()) or is_dual(array)

    def view(self, array: Tensor) -> View:
        """Return the memory that `array` covers."""
        size = array.element_size()
        strides = tuple(stride * size for stride in array.stride())
        return View(array.data_ptr(), tuple(array.shape), strides, size)

    def cast(self, entry: Tensor, dtype: Any) -> Tensor:
        """Return `entry` as `dtype`."""
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{dtype!r} is not a torch.dtype")
        return entry.to(dtype)

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Tensor:
        """Join with `torch.cat`; without `out` it would keep channels_last."""
        out = entries[0].new_empty(shape) if out is None else out
        try:
            _write(entries, dim, out)
        except RuntimeError as error:
            # No copy kernel, as for strided uint4: move plain bytes. NotImplementedError since 2.7.
            same_size = {1: torch.uint8, 2: torch.int16}.get(out.element_size())
            if same_size is None or "not implemented" not in str(error):
                raise
            _write([entry.view(same_size) for entry in entries], dim, out.view(same_size))
        return out  # type: ignore[no-any-return]

    def piece(self, buffer: Tensor, dim: int, start: int, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of its own over the memory of `buffer`.

        Not a view: autograd would refuse to change views of one buffer in place, which it lets
        one do with the results of `torch.cat`.
        """
        if len(shape) != buffer.dim():
            return buffer.new_empty(shape)
        offset = buffer.storage_offset() + start * buffer.stride(dim)
        source = buffer.untyped_storage()
        return buffer.new_empty(0).set_(source, offset, shape, buffer.stride())

    def give(self, array: Tensor) -> Tensor:
        """Return `array`: tensors in, tensors out."""
        return array

    def around(
        self, run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
    ) -> list[Any]:
        """Call `run`, recorded for autograd if an entry requires it."""
        if not any(map(self.differentiable, table.grid)):
            return run()
        from ._autograd import differentiable

        return differentiable(run, table, layout, packed)


class ByCat(Plain):
    """Joins by nothing but `torch.cat`: subclasses, where it may do anything; torch.func; duals.

    And whatever there is while a dispatch mode watches: a tracer that is to record `torch.cat`.
    """

    def view(self, array: Tensor) -> View:
        """Return the memory that `array` covers: none, if it does not tell."""
        nothing = View(0, (0,), (0,), 1)
        if _is_fake(array):  # which may warn where its address is asked for
            return nothing
        try:
            view = super().view(array)
        except RuntimeError:  # as of other wrappers
            return nothing
        return view if view.address else nothing

    def refusal(self, entry: Tensor) -> Refusal | None:
        """Say why the data of `entry` cannot be joined; what memory it has is its own affair."""
        return refusal(entry)

    def guarded(self, out: Tensor) -> str | None:
        """Refuse what `torch.cat` would not write to."""
        if _transforming() or _is_wrapped(out):
            return "an out inside torch.func"
        return super().guarded(out)

    def concat(self, entries: list[Any], dim: int, out: Any, shape: tuple[int, ...]) -> Tensor:
        """Join with `torch.cat`, whose result and memory format it is."""
        try:
            return torch.cat(entries, dim) if out is None else torch.cat(entries, dim, out=out)
        except (TypeError, RuntimeError, AssertionError) as error:
            if of_memory(error):
                raise
            got = f"tensors that torch.cat does not join ({error})"
            raise make("DTYPE", None, None, got, "some that it joins") from error

    def piece(self, buffer: Tensor, dim: int, start: int, shape: tuple[int, ...]) -> Tensor:
        """Return a view: the subclass may have no memory of its own to set a tensor over."""
        if len(shape) != buffer.dim():
            return buffer.new_empty(shape)
        return buffer.narrow(dim, start, shape[dim])

    def around(
        self, run: Callable[[], list[Any]], table: Features, layout: Layout, packed: bool
    ) -> list[Any]:
        """Call `run`; `torch.cat` records itself."""
        return run()


def _write(entries: list[Tensor], dim: int, out: Tensor) -> None:
    """Join `entries` into `out`, whatever its strides.

    On the CPU `torch.cat` writes nothing into an `out` that is contiguous but for the strides of
    dimensions of size 1 (2.15: it divides by them), so those are set right; where that is not
    enough to make it contiguous, rows are copied.
    """
    if out.numel() == 0:
        return
    if out.is_contiguous():
        strides = list(accumulate(reversed(out.shape[1:]), mul, initial=1))[::-1]
        torch.cat(entries, dim, out=out.as_strided(out.shape, strides))
        return
    start = 0
    for entry in entries:
        if entry.dim() == out.dim() and entry.shape != (0,):
            out.narrow(dim, start, entry.shape[dim]).copy_(entry)
            start += entry.shape[dim]


def _is_a(tensor: Tensor, module: str, name: str) -> bool:
    """Report whether `tensor` is of a class whose module may not even be loaded."""
    return isinstance(tensor, getattr(sys.modules.get(module), name, ()))


def is_plain_class(tensor: Tensor) -> bool:
    """Report whether `tensor` is a tensor or parameter itself, outside of torch.func."""
    return type(tensor) in _PLAIN and not _transforming() and not needs_cat(tensor)


# What reports modes that want to see `torch.cat`, and would fake the tensors of `introduce`.
WATCHERS = (torch._C._len_torch_dispatch_stack, torch._C._is_tracing, _transforming)


def introduce() -> tuple[dict[str, Any], list[Any], list[Tensor]]:
    """Return what the native engine needs to know of this torch.

    Returns
    -------
    hooks : dict
        The types and functions it calls.
    probes : list of (Tensor, address of its TensorImpl, dispatch key set, has autograd state)
        Tensors that differ in the two words by which it tells plain tensors.
    plain : list of Tensor
        Ordinary tensors on which it proves its short cuts.
    """
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        plain = [
            torch.zeros(2, 3, device="cpu"),
            torch.zeros(4, 2, 3, dtype=torch.int16, device="cpu").transpose(0, 2)[1:],
        ]
        # several of each, lest the two words be sought in what lies behind a tensor by chance
        states = (False, True) * 4
        several = [torch.zeros(3, device="cpu", requires_grad=state) for state in states]
        probes = [_probe(t, state) for t, state in zip(several, states, strict=True)]
        probes += [_probe(plain[0], False), _probe(torch.empty(2, device="meta"), False)]
    hooks = {
        "tensor": torch.Tensor,
        "empty": _empty,
        "is_grad_enabled": torch.is_grad_enabled,
        "current_stream": lambda device: torch.cuda.current_stream(device).cuda_stream,
        "forward_ad": vars(forward_ad),
        "watchers": WATCHERS,
    }
    return hooks, probes, plain


def _empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a plain tensor, also where a mode of the caller or torch.func would change it."""
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        return torch.empty(shape, dtype=dtype, device=device)


def _probe(tensor: Tensor, state: bool) -> tuple[Tensor, int, int, bool]:
    return tensor, tensor._cdata, torch._C._dispatch_keys(tensor).raw_repr(), state


def attributes(tensor: Tensor) -> tuple[Any, ...]:
    """Describe a tensor that the DLPack table of this torch cannot, or that has no such table.

    Returns
    -------
    (address, shape, strides in elements, dtype code, bits, lanes, device type, device index)
        Codes are DLPack's where it has the dtype, else numbers above 100 that only mean "equal".
    """
    kind, name = tensor.device.type, str(tensor.dtype).removeprefix("torch.")
    bits = tensor.element_size() * 8
    family = next((code for start, code in _DLPACK_FAMILIES if name.startswith(start)), None)
    code = 100 + _opaque(tensor.dtype) if family is None else family
    device = {"cpu": 1, "cuda": 2}.get(kind, 100), tensor.device.index or 0
    address = tensor.data_ptr() if tensor.untyped_storage().nbytes() else 0
    return address, tensor.shape, tensor.stride(), code, bits, 1, *device


# Families whose code and width say it all; names are matched from their start, in this order.
_DLPACK_FAMILIES = (
    ("uint", 1),
    ("int", 0),
    ("float16", 2),
    ("float32", 2),
    ("float64", 2),
    ("bfloat16", 4),
    ("float8_e4m3fnuz", 11),
    ("float8_e4m3fn", 10),
    ("float8_e5m2fnuz", 13),
    ("float8_e5m2", 12),
    ("complex", 5),
    ("bool", 6),
)
_opaque_dtypes: list[torch.dtype] = []


def _opaque(dtype: torch.dtype) -> int:
    if dtype not in _opaque_dtypes:
        _opaque_dtypes.append(dtype)
    return _opaque_dtypes.index(dtype)


def refuse_out(out: Tensor) -> Refusal | bool | None:
    """Say if the native engine may write to `out`: None yes, True all like it, or a refusal."""
    plain = Plain()
    reason = refusal(out)
    if reason is not None:
        return reason
    guarded = plain.guarded(out)
    if guarded:
        return "OWNER", guarded, "an out that can be written to"
    if plain.differentiable(out):
        return "OWNER", "an out that requires grad or has a tangent", "no_grad(), or no grad"
    return True if type(out) is torch.Tensor and not out.is_inference() else None


# Counts a new version of each of a list of tensors, as any operation in place does.
written = torch.autograd.graph.increment_version
