"""The native engine: loads `goflat._core`, tells it about torch and NumPy, and runs calls.

The extension never imports torch or NumPy. It asks `_resolve` about the first array of every kind
it meets; from then on plain tensors and arrays are read without entering Python.
"""

from __future__ import annotations

import mmap
import os
import sys
import warnings
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from . import _casts, _fallback, _pure
from ._errors import from_native, of_memory
from ._features import Features, read
from ._flat import Flat
from ._kinds import arrays_of, kind_of
from ._layout import counts, offsets, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


_core: ModuleType | None
reason = ""  # why calls do not enter the extension; empty where they do
pure = False  # whether that is as installed
try:
    from . import _core
except ImportError as error:  # another system than the wheel's, musl, or the pure-Python wheel
    _core = None
    pure = _pure.wheel()
    reason = _pure.WHY if pure else str(error)

# Statuses and flags of bridge/job.h.
_DONE, _GRAD, _FALLBACK, _NORMALISE, _ERROR, _UNPROVED, _RECORD, _FILL = range(8)
_ONE_KEY, _PACKED, _NO_GRAD, _LAYOUT, _RECORDED = 1, 2, 4, 8, 16

_EXCHANGE_API = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")  # DLPack 1.3 and 1.2


def available() -> bool:
    """Report whether calls enter the extension in this process."""
    return _core is not None


def flatten(features: Any, outs: Any, dim: Any, packed: bool) -> Flat[Any]:
    """Join the entries of each batch; takes and returns what `_fallback.flatten` does."""
    given = _listed(outs, packed)
    if type(dim) is int and _core is not None and not isinstance(given, tuple):
        flat: Flat[Any] = Flat()
        flags = (_PACKED if packed else 0) | (_RECORDED if given is None else 0)
        at = 0 if given is None else id(given)
        try:
            status = _core.bridge_Flatten(id(features), at, id(flat), dim, flags)
        except RuntimeError as error:
            raise _error(str(error), features, 0) from None
        except OverflowError:  # dim
            status = _FALLBACK
        if status == _DONE and flat:
            if given is not None:
                _written(given)
            return _cut(flat) if packed else flat
        if status == _RECORD:
            return _recorded(flat, packed)
    return _flatten(features, outs, dim, packed)


def cat(tensors: Any, dim: Any, dtype: Any = None) -> Any:
    """Join `tensors` into one; None where `flatten` has to be asked, whatever the reason."""
    like = None if dtype is None else _casts.like(dtype)
    if _core is None or not _is_int64(dim) or (dtype is not None and like is None):
        return None
    result: list[Any] = []
    status = _run(tensors, None, result, dim, _ONE_KEY, like)
    if status == _GRAD:
        flat: Flat[Any] = Flat()
        if _run(tensors, None, flat, dim, _ONE_KEY | _RECORDED, like) == _RECORD:
            return _recorded(flat, False)[0]
    if status == _FILL:
        _casts.fill(result, [list(tensors)], dim)
    return result[0] if status in (_DONE, _FILL) and result else None


def cast(features: Any, outs: Any, dim: Any, dtype: Any, packed: bool) -> Flat[Any] | None:
    """Join entries and convert them on the way; None where that is not to be done natively."""
    like = _casts.like(dtype)
    if _core is None or like is None or not _is_int64(dim):
        return None
    return _attempt(features, _listed(outs, packed), dim, packed, 0, like)


def layout(features: Any, one_key: bool, dim: Any = 0) -> Flat[Any] | None:
    """Return a result without outputs, for its layout; None where Python has to describe it.

    `features` is a dict of lists, a list of dicts or, if `one_key`, a list of arrays.
    """
    flat: Flat[Any] = Flat()
    flags = _LAYOUT | _NO_GRAD | (_ONE_KEY if one_key else 0)
    if _core is None or not _is_int64(dim) or _run(features, None, flat, dim, flags) != _DONE:
        return None
    return flat if hasattr(flat, "_layout") else None


def bind(
    features: dict[Any, list[Any]], outs: list[Any], dim: int, packed: bool, dtype: Any
) -> int:
    """Return the handle of a job that can be run again, or 0 where the fall-back has to do it."""
    scratch: list[Any] = []
    flags = _NO_GRAD | (_PACKED if packed else 0)
    like = None if dtype is None else _casts.like(dtype)
    if _core is None or (dtype is not None and like is None):
        return 0
    try:
        found = (id(features), id(outs), id(scratch))
        handle: int = _core.bridge_Bind(*found, dim, flags, 0 if like is None else id(like))
    except RuntimeError as error:
        raise _error(str(error), features, flags) from None
    return handle


def _is_int64(dim: Any) -> bool:
    return type(dim) is int and -(2**63) <= dim < 2**63


def _run(
    features: Any,
    outs: list[Any] | None,
    result: list[Any],
    dim: int,
    flags: int = 0,
    like: Any = None,
    rules: int = -1,
) -> int:
    """Enter the extension once: _DONE, or another status with `result` untouched.

    Parameters
    ----------
    features : dict of list, list of dict, or with ``_ONE_KEY`` list of array
        Other containers are not understood and give a status.
    outs : list of array or None
        Where to write; None for new arrays.
    result : list
        Receives the outputs, and if it is a `Flat` also the layout.
    dim, flags : int
        Dimension to join along, and what else is wanted.
    like : Tensor, optional
        Has the dtype to convert to.
    rules : int, default -1
        A trial, see `_proofs`: what a conversion is to be compared with torch under.

    Raises
    ------
    Error
        What is wrong with `features` or `outs`; nothing has been written then.
    """
    try:
        found = (id(features), 0 if outs is None else id(outs), id(result), dim, flags)
        if like is None:
            status: int = _core.bridge_Flatten(*found)  # type: ignore[union-attr]
        else:
            status = _core.bridge_Cast(*found, id(like), rules)  # type: ignore[union-attr]
    except RuntimeError as error:
        raise _error(str(error), features, flags) from None
    return status


def _flatten(features: Any, outs: Any, dim: Any, packed: bool) -> Flat[Any]:
    """Do a job that is not plain: `out=`, packed, autograd, unusual containers or arrays."""
    flat = None
    if _forked:
        _tell()
    if _core is not None and _is_int64(dim):
        flat = _attempt(features, _listed(outs, packed), dim, packed, 0)
    return _fallback.flatten(features, outs, dim, packed) if flat is None else flat


def _attempt(
    features: Any, outs: Any, dim: int, packed: bool, flags: int, like: Any = None
) -> Flat[Any] | None:
    """Return the result, or None where the fall-back has to do it."""
    if isinstance(outs, tuple):
        return None
    flat: Flat[Any] = Flat()
    containers = as_dict(features) if isinstance(features, Features) else features
    status = _run(containers, outs, flat, dim, flags | (_PACKED if packed else 0), like)
    if status == _NORMALISE and not isinstance(features, Features):
        return _attempt(read(features), outs, dim, packed, flags, like)
    if status == _UNPROVED and _casts.prove(read(features), like):
        return _attempt(features, outs, dim, packed, flags, like)
    if status == _GRAD and outs is None:
        return _differentiable(read(features), dim, packed, like)
    if status == _FILL:
        _casts.fill_flat(flat, read(features), dim, packed)
    elif status != _DONE or not flat:
        return None
    if outs is not None:
        _written(outs)
    return _cut(flat) if packed else flat


_writers: dict[type, Callable[[list[Any]], object]] = {}  # by type of the outputs


def _written(outs: list[Any]) -> None:
    """Tell autograd that `outs` have changed: what was saved of them for backward is stale."""
    kind = type(outs[0])
    if kind not in _writers:
        _writers[kind] = _writer(kind)
    _writers[kind](outs)


def _writer(kind: type) -> Callable[[list[Any]], object]:
    if kind_of(kind) != "torch":
        return id  # nobody has to be told
    from ._torch import written

    return written


def as_dict(table: Features) -> dict[Any, list[Any]]:
    """Return the entries as the extension reads them."""
    size = table.batches
    return {key: table.grid[k * size : (k + 1) * size] for k, key in enumerate(table.keys)}


def _listed(outs: Any, packed: bool) -> list[Any] | tuple[()] | None:
    """Return `outs` as a list, or () where it is none and the fall-back is to say so."""
    if outs is None:
        return None
    if packed:
        return [outs]
    return list(outs) if isinstance(outs, (list, tuple)) else ()


def _cut(flat: Flat[Any]) -> Flat[Any]:
    """Turn a result that is one buffer into one array per batch, unless the extension has."""
    if flat.buffer is not None:
        return flat
    (buffer,), layout = flat, flat.layout
    arrays = arrays_of(Features((None,), 1, [buffer]))
    rows = [offsets(layout, b)[-1] for b in range(layout.batches)]
    starts = accumulate(rows, initial=0)
    flat[:] = [arrays.piece(buffer, layout.dim, *cut) for cut in _cuts(starts, rows, layout)]
    flat._buffer = buffer
    return flat


def _cuts(starts: Any, rows: list[int], layout: Any) -> Any:
    return ((start, shape_of(layout, n)) for start, n in zip(starts, rows, strict=False))


def _differentiable(table: Features, dim: int, packed: bool, like: Any) -> Flat[Any] | None:
    """Join outside of autograd and record the outputs; None where the fall-back has to do it."""
    import torch

    with torch.no_grad():
        flat = _attempt(table, None, dim, packed, _NO_GRAD, like)
    if flat is not None:
        flat._columns = tuple(tuple(table.column(b)) for b in range(table.batches))
        _tell_autograd(flat)
    return flat


def _recorded(flat: Flat[Any], packed: bool) -> Flat[Any]:
    """Complete a result that autograd has not been told of."""
    if packed:
        _cut(flat)
    _tell_autograd(flat)
    return flat


def _tell_autograd(flat: Flat[Any]) -> None:
    from ._autograd import record

    columns = flat._columns
    del flat._columns
    record(flat, columns, counts(flat._layout))


def _error(text: str, features: Any, flags: int) -> BaseException:
    """Turn the text of a native error into what is to be raised."""
    if not text.startswith("PYTHON|"):
        return from_native(text, _keys(features, flags))
    caught: list[BaseException] = []
    _core.bridge_TakeException(id(caught))  # type: ignore[union-attr]
    error = caught[0] if caught else MemoryError("no memory for an error")
    return of_memory(error) or error


def _keys(features: Any, flags: int) -> tuple[Any, ...]:
    if flags & _ONE_KEY:
        return tuple(range(len(features)))
    first = features if isinstance(features, Mapping) else next(iter(features), ())
    return tuple(first)


# ---- what the extension asks ----


def _resolve(entry: Any) -> Any:
    """Say how to read `entry`: an array to read instead, a status, or a refusal."""
    kind = kind_of(type(entry))
    if kind == "torch":
        return _resolve_tensor(entry)
    if kind == "numpy":
        return _resolve_ndarray(entry)
    if kind == "cupy":
        return _resolve_cupy(entry)
    if kind == "jax":
        return _FALLBACK  # whose results are arrays of JAX, and which knows tracers
    if any(hasattr(type(entry), name) for name in _EXCHANGE_API):
        return entry
    if kind is None or not _is_on_cpu(entry):
        return _FALLBACK  # which refuses it
    _meet_numpy()
    return entry


def _is_on_cpu(producer: Any) -> bool:
    try:
        return bool(producer.__dlpack_device__()[0] == 1)
    except Exception:  # whatever it is: the fall-back meets it again, and says at which entry
        return False


def _resolve_tensor(tensor: Any) -> Any:
    from . import _torch

    if not _torch.is_plain_class(tensor) or not _meet_torch():
        return _FALLBACK
    reason = _torch.refusal(tensor) or _torch.memory_refusal(tensor)
    if reason is not None:
        return reason
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        return _GRAD
    return _torch.resolve(tensor)


def _resolve_ndarray(array: Any) -> Any:
    _meet_numpy()
    np = sys.modules["numpy"]
    return array if type(array) in (np.ndarray, np.memmap) else _FALLBACK


def _resolve_cupy(array: Any) -> Any:
    from . import _cupy

    hooks = _cupy.introduce()
    _core.bridge_Register(id(hooks))  # type: ignore[union-attr]
    return array if type(array) is hooks["cupy"] else _FALLBACK


def _refuse_out(out: Any) -> Any:
    """Say whether `out` may be written to: None, True (so are all like it), status or refusal."""
    kind = kind_of(type(out))
    if kind == "torch":
        from . import _torch

        return _torch.refuse_out(out) if _torch.is_plain_class(out) else _FALLBACK
    np = sys.modules.get("numpy")
    plain = kind != "numpy" or (np is not None and type(out) in (np.ndarray, np.memmap))
    return None if plain else _FALLBACK


def _attributes(tensor: Any) -> tuple[Any, ...]:
    """Describe a tensor that DLPack has no words for: address, shape, strides, dtype, device."""
    from . import _torch

    return _torch.attributes(tensor)


def _wrap(example: Any, array: Any) -> Any:
    """Give an ndarray back as the kind of array that `example` is."""
    from ._numpy import Foreign

    return Foreign(example).give(array)


# Framework that the extension knows -> how it reads it: what LearnTorch returned, and 1 more where
# LearnImpl succeeded too; 0 for NumPy.
_met: dict[str, int] = {}
_MADE = 3  # LearnTorch: tensors are read and made by torch's C functions


def _meet_torch() -> bool:
    """Tell the extension about torch, once; False while a mode would fake what it is shown."""
    if "torch" in _met:
        return True
    from . import _torch

    if watched():
        return False
    hooks, probes, plain = _torch.introduce()
    hooks["attributes"] = _attributes
    _core.bridge_Register(id(hooks))  # type: ignore[union-attr]
    _met["torch"] = _core.bridge_LearnTorch(id(probes), id(plain))  # type: ignore[union-attr]
    if _met["torch"] == _MADE:
        _met["torch"] += _learn_words()
    return True


def watched() -> bool:
    """Report whether a mode or transform of torch's is active, under which tensors may be fake."""
    from . import _torch

    return any(watcher() for watcher in _torch.WATCHERS)


def _learn_words() -> int:
    """Return 1 if the extension has found out where tensors keep what it asks of them."""
    from . import _words

    probes, elsewhere = _words.probes()
    learnt: int = _core.bridge_LearnImpl(id(probes), id(elsewhere))  # type: ignore[union-attr]
    return learnt


def _meet_numpy() -> None:
    """Tell the extension about NumPy, once."""
    if "numpy" not in _met:
        import numpy as np

        hooks = {"ndarray": np.ndarray, "np_empty": np.empty}
        _core.bridge_Register(id(hooks))  # type: ignore[union-attr]
        _met["numpy"] = 0


_forked = False  # whether the extension was loaded by a parent of this process
_told = mmap.mmap(-1, 1)  # of one byte, shared with forked children: whether one of them has warned


def _forget() -> None:
    """Leave the extension alone in a forked child: Go's threads do not survive a fork."""
    global _core, _forked, reason
    _forked = _forked or _core is not None
    _core, reason = None, "this process was forked from one that had loaded goflat"


def _tell() -> None:
    """Warn of the fall-back in forked children, once for all children of a process."""
    if _told[0]:
        return
    _told[0] = 1
    text = f"goflat runs in pure Python, on torch.cat and numpy.concatenate: {reason}. Workers that"
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{text} are started by spawn or forkserver have the extension", stacklevel=level)


if _core is not None:
    _first_hooks = {"resolve": _resolve, "refuse_out": _refuse_out, "wrap": _wrap}
    _core.bridge_Register(id(_first_hooks))
    os.register_at_fork(after_in_child=_forget)
elif not pure:
    warnings.warn(
        f"goflat runs in pure Python, on torch.cat and numpy.concatenate: {reason}", stacklevel=2
    )
