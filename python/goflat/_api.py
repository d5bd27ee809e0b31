"""The functions that users call: arguments in, one call of the engine, results out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _native, _tracing
from ._cast import cast, fused
from ._errors import Error, of_cat
from ._features import read, read_tensors
from ._flat import unflatten as _unflatten

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable, Mapping, Sequence

    from ._features import Features
    from ._flat import Flat
    from ._layout import Layout

A = TypeVar("A")

# engine(features or Features, outs, dim, packed): checks, joins, returns a Flat
_engine: Callable[[Any, Any, Any, bool], Flat[Any]] = _native.flatten


@overload
def flatten(
    features: Mapping[Any, Sequence[A]],
    *,
    dim: int = ...,
    out: Sequence[A] | A | None = ...,
    dtype: Any = ...,
    packed: bool = ...,
) -> Flat[A]: ...
@overload
def flatten(
    features: Sequence[Mapping[Any, A]],
    *,
    dim: int = ...,
    out: Sequence[A] | A | None = ...,
    dtype: Any = ...,
    packed: bool = ...,
) -> Flat[A]: ...
def flatten(
    features: Any, *, dim: int = 0, out: Any = None, dtype: Any = None, packed: bool = False
) -> Flat[Any]:
    """Join all keys' rows of each batch: one array per batch out of a dict of lists.

    ``flatten(x)[b]`` equals ``torch.cat([x[k][b] for k in x], dim)`` bit for bit. The inputs
    stay as they are.

    Parameters
    ----------
    features : Mapping[key, Sequence[array]] or Sequence[Mapping[key, array]]
        Entry of each key and batch, key-major (`features[k][b]`) or batch-major (`features[b][k]`,
        keys in the order of the first batch). Values of shape ``(rows, *row_shape)``: rows may
        differ and be 0; row_shape and dtype are the same for all entries, the device is the same
        for all entries of a batch. Tensors, arrays of NumPy, CuPy or JAX, or CPU arrays with
        ``__dlpack__``.
        Entries of shape (0,) are skipped, as `torch.cat` skips them.
    dim : int, default 0
        Dimension to join along; negative numbers count from the end. "Rows" are counted along it.
    out : Sequence[array] or array, optional
        Where to write: one array per batch, with `packed` one array for all. Strided ones are
        filled in place; shape, dtype and device must be right, nothing is ever resized.
    dtype : torch.dtype or numpy.dtype, optional
        Convert entries to this dtype, as ``entry.to(dtype)`` does. Tensors of floating-point
        numbers are converted while they are copied: on a GPU always, on the CPU where they are
        contiguous and `dim` is the first of more than one element, else one after the other.
        Everything else is converted first. Without it entries of several dtypes are an error.
    packed : bool, default False
        Place all outputs, one batch behind the other, in one buffer: `Flat.buffer`, which equals
        ``torch.cat(list(flat), dim)``.

    Returns
    -------
    Flat
        A list with one array per batch, of shape ``(sum of rows, *row_shape)``, on the device of
        the batch; a batch of nothing but (0,) entries gives (0,). New contiguous arrays that share
        memory with no entry; or the arrays of `out` themselves; or, with `packed`, parts of the
        buffer: tensors of their own, not autograd views. Like in, like out: torch, NumPy or the
        library of the entries. Differentiable: gradients of entries are views of the outputs'
        gradients.

    Raises
    ------
    ShapeError
        If lists have different lengths, batches different keys, an entry another row_shape or
        no dimension, `dim` is out of range, or an array of `out` has the wrong shape.
    DTypeError
        If an entry or container is of the wrong type, entries are of several frameworks or
        dtypes, or are more than plain data (sparse, nested, quantized, masked, ...).
    DeviceError
        If entries of a batch, or with `packed` of all batches, lie on several devices; or an entry
        has no memory to read (on the meta device: `plan` and `Layout.of` take it).
    OverlapError
        If an array of `out` shares memory with an entry, another one of them, or itself.
    OwnershipError
        If an array of `out` is read-only or of JAX, or autograd is on and it or an entry requires
        grad.
    OutOfMemoryError
        If there is no memory for the outputs; in the words of the framework.

    Notes
    -----
    Reads and writes each byte of the entries once. Memory grows by the sum of the outputs, by 0
    with `out`; with `dtype` also by what cannot be converted into its place. Everything is checked
    before the first byte is written, and the message of an error names key and batch.

    Under `torch.compile` and `torch.export` this is plain `torch.cat`, whose memory format and
    views you then get: docs/compile.md.

    Examples
    --------
    >>> import torch, goflat
    >>> features = {
    ...     "p2": [torch.zeros(2, 256, 7, 7), torch.zeros(5, 256, 7, 7)],
    ...     "p3": [torch.ones(1, 256, 7, 7), torch.ones(0, 256, 7, 7)],
    ... }
    >>> flat = goflat.flatten(features)
    >>> [tuple(batch.shape) for batch in flat]
    [(3, 256, 7, 7), (5, 256, 7, 7)]
    >>> bool((flat[0][2] == 1).all())
    True

    One buffer for all batches:

    >>> flat = goflat.flatten(features, packed=True)
    >>> tuple(flat.buffer.shape)
    (8, 256, 7, 7)
    """
    if _tracing.by_dynamo():
        return _trace(features, dim, out, dtype, packed)
    if dtype is not None:
        return _cast_and_flatten(features, out, dim, dtype, packed)
    flat = _engine(features, out, dim, packed)
    if out is not None:
        flat._made = "given"
    return flat


def cat(tensors: Sequence[A], dim: int = 0, *, out: A | None = None, dtype: Any = None) -> A:
    """Join arrays along `dim`, like `torch.cat`: `flatten` for one output.

    Parameters
    ----------
    tensors : Sequence[array]
        At least one array of shape ``(rows, *row_shape)``; rows may differ and be 0. One row_shape,
        dtype and device. Arrays of shape (0,) are skipped, as `torch.cat` skips them.
    dim : int, default 0
        Dimension to join along; negative numbers count from the end.
    out : array, optional
        Where to write: of the right shape, dtype and device; may be strided, is never resized.
    dtype : torch.dtype or numpy.dtype, optional
        Convert the arrays to this dtype first.

    Returns
    -------
    array
        Shape ``(sum of rows, *row_shape)``: a new contiguous array on the arrays' device, or `out`.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, OverlapError, OwnershipError, OutOfMemoryError
        As `flatten` does; ``batch`` of the error is the position in `tensors`.

    Notes
    -----
    Reads and writes each byte once. Memory grows by the output, by 0 with `out`; with `dtype` also
    by what cannot be converted into its place, see `flatten`.

    Examples
    --------
    >>> import torch, goflat
    >>> goflat.cat([torch.zeros(1, 2), torch.ones(2, 2)])
    tensor([[0., 0.],
            [1., 1.],
            [1., 1.]])
    """
    if out is None and not _tracing.by_dynamo() and _engine is _native.flatten:
        try:
            result = _native.cat(tensors, dim, dtype)
        except Error as error:
            raise of_cat(error) from None
        if result is not None:
            return result  # type: ignore[no-any-return]
    return _cat(tensors, dim, out, dtype)  # type: ignore[no-any-return]


def unflatten(flat: Sequence[A], layout: Layout) -> OrderedDict[Any, list[A]]:
    """Cut one array per batch into views, one per key and batch: the way back from `flatten`.

    Parameters
    ----------
    flat : Sequence[array]
        One array per batch, shape ``(sum of rows, *row_shape)`` as `layout` says; any dtype and
        device, for example a result computed from the output of `flatten`.
    layout : Layout
        `Flat.layout`, or ``Layout.of(features)``.

    Returns
    -------
    OrderedDict[key, list of array]
        Entry of each key and batch: a view of its batch's array, of the shape it had.

    Raises
    ------
    ShapeError
        If the number of arrays or the shape of one is not what `layout` says.

    Notes
    -----
    Moves no bytes.

    Examples
    --------
    >>> import torch, goflat
    >>> flat = goflat.flatten({"p2": [torch.zeros(2, 3)], "p3": [torch.ones(1, 3)]})
    >>> scores = [batch.sum(dim=1, keepdim=True).expand(-1, 3) for batch in flat]
    >>> goflat.unflatten(scores, flat.layout)["p3"]
    [tensor([[3., 3., 3.]])]
    """
    return _unflatten(flat, layout)


def _cast_and_flatten(features: Any, out: Any, dim: int, dtype: Any, packed: bool) -> Flat[Any]:
    if _tracing.by_anyone():
        table = read(features)
        if _tracing.watches(table):
            return _tracing.flatten(table, dim, out, dtype, packed)
    native = _engine is _native.flatten
    flat = _native.cast(features, out, dim, dtype, packed) if native else None
    if flat is None:
        flat = _cast_in_python(read(features), out, dim, dtype, packed)
    if out is not None:
        flat._made = "given"
    return flat


def _cast_in_python(table: Features, out: Any, dim: int, dtype: Any, packed: bool) -> Flat[Any]:
    flat = fused(table, out, dim, dtype, packed)
    if flat is None:
        converted, nbytes = cast(table, dtype)
        flat = _engine(converted, out, dim, packed)
        flat._cast = nbytes
    return flat


def _cat(tensors: Any, dim: int, out: Any, dtype: Any) -> Any:
    table: Any = read_tensors(tensors)
    try:
        if _tracing.by_dynamo():
            return _trace_cat(table, dim, out, dtype)
        return flatten(table, dim=dim, out=None if out is None else [out], dtype=dtype)[0]
    except Error as error:
        raise of_cat(error) from None


def _trace(features: Any, dim: int, out: Any, dtype: Any, packed: bool) -> Flat[Any]:
    """Show Dynamo plain operations, or where it cannot follow a break in its graph."""
    from . import _breaks, _traced

    table = read(features)
    if _breaks.SEES_FLAT and _traced.takes(table):
        return _traced.flatten(table, dim, out, dtype, packed)
    call = _tracing.outside(flatten, features, dim=dim, out=out, dtype=dtype, packed=packed)
    return call  # type: ignore[no-any-return]


def _trace_cat(table: Any, dim: int, out: Any, dtype: Any) -> Any:
    from . import _traced

    if _traced.takes(table):
        return _traced.cat(table, dim, out, dtype)
    return _tracing.outside(cat, table.grid, dim, out=out, dtype=dtype)
