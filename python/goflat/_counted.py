"""Who uses the memory of tensors, asked through Python attributes.

The slow twin of bridge/own.c, with the same answers, for a torch in whose objects the counts were
not found. Asking for a storage makes a Python object for it, which stays with the tensor.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _torch
from ._ownership import (
    ADOPTABLE,
    FOREIGN,
    HELD,
    IS_GRAD,
    IS_STRIDED,
    IS_VIEW,
    LEAF,
    NOT_PLAIN,
    NOT_TORCH,
    OVERLAP,
    SAVED,
    SHARED,
    STORAGE,
    STRIDED,
    TWICE,
    UNKNOWN,
    Record,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_C: Any = torch._C  # whose stub lacks most of what is used here
_DEVICES = {"cpu": 1, "cuda": 2}


def is_plain(tensor: Tensor) -> bool:
    """Report whether its memory is all there is to `tensor`."""
    if _torch.refusal(tensor) is not None or _torch.needs_cat(tensor):
        return False
    return not tensor.is_conj() and not tensor.is_neg()


class _Base(NamedTuple):
    identity: int  # of the C++ tensor
    storage: int
    uses: int  # its C++ references, that of its Python object included
    references: int  # to its Python object


class _Tensor(NamedTuple):
    record: Record
    span: int  # bytes from the first to the last byte touched
    uses: int  # of the storage
    references: int  # to the storage's Python object
    base: _Base | None


# What the counts are for tensors that nobody holds, as seen by the very functions that count.
_wrapper_uses, _wrapper_references, _base_references = 0, 0, 0


def learn() -> bool:
    """Learn what counts say of fresh tensors; False where they do not say the same twice."""
    global _wrapper_uses, _wrapper_references, _base_references
    with torch.inference_mode(False), torch.enable_grad(), _C.DisableTorchFunction():
        fresh = torch.zeros(3, device="cpu")
        first, again = _storage_of(fresh), _storage_of(fresh)
        parts = torch.split(torch.zeros(4, device="cpu"), 2)
        base = _base_of(parts[0])
    if first != again or base is None:
        return False
    _wrapper_uses, _wrapper_references = first[3] - 1, first[4]
    _base_references = base.references
    return True


def _storage_of(tensor: Tensor) -> tuple[int, int, bool, int, int]:
    """Return address, bytes, whether torch may resize it, C++ uses and Python references."""
    storage = tensor.untyped_storage()
    uses = _C._storage_Use_Count(storage._cdata)
    if _C._is_cow_tensor(tensor):  # asked for its address, it would be copied
        return 0, storage.nbytes(), False, uses, sys.getrefcount(storage)
    own = storage.resizable() and not _is_lent(tensor, storage)
    return storage.data_ptr(), storage.nbytes(), own, uses, sys.getrefcount(storage)


def _is_lent(tensor: Tensor, storage: Any) -> bool:
    """Report whether memory is pinned, or shared with another process."""
    if tensor.is_cpu:
        return bool(storage.is_shared()) or tensor.is_pinned()
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    cache = {} if reductions is None else reductions.shared_cache
    return any(ref.cdata == storage._cdata for ref in list(cache.values()))


def _base_of(tensor: Tensor) -> _Base | None:
    if not tensor._is_view():
        return None
    base = tensor._base
    if base is None:
        return None
    storage = _C._storage_address(base)
    return _Base(base._cdata, storage, base._use_count(), sys.getrefcount(base))


_probe = [object()]
_ON_THE_STACK = sys.getrefcount(_probe[0]) - 1  # what asking for an item of a list adds


def survey(tensors: list[Any], expected: int, made: list[int]) -> list[tuple[Any, ...]]:
    """Answer as gf_survey does, but for adopted outputs, which look foreign here."""
    with _C.DisableTorchFunction():
        references = [sys.getrefcount(tensors[i]) - _ON_THE_STACK for i in range(len(tensors))]
        twice = Counter(map(id, tensors))
        # one look at each before the first is judged: bases are shared
        looks = [_look(tensors, i, references[i] - expected, made[i]) for i in range(len(tensors))]
    judged = _judge_storages([look for look in looks if isinstance(look, _Tensor)])
    answers = []
    for tensor, look in zip(tensors, looks, strict=True):
        record = _settle(look, judged) if isinstance(look, _Tensor) else look
        reason = TWICE if twice[id(tensor)] > 1 else record.reason
        answers.append((*record[:-1], reason))
    return answers


def _look(tensors: list[Any], i: int, extra: int, made: int) -> Record | _Tensor:
    """Look at one of `tensors`, which has `extra` references that nobody accounts for.

    `made` is the number of outputs over its storage.
    """
    tensor = tensors[i]
    nothing = Record(0, 0, 0, 0, 0, 0, 0, 0, NOT_PLAIN)
    if not isinstance(tensor, torch.Tensor):
        return nothing._replace(reason=NOT_TORCH)
    if type(tensor) is not torch.Tensor or not is_plain(tensor):
        return nothing
    address, size, own, uses, references = _storage_of(tensor)
    flags, reason = _grad_of(tensor)
    reasons = [reason, ADOPTABLE if own else FOREIGN]
    if not _is_contiguous(tensor):
        flags |= IS_STRIDED
        reasons.append(STRIDED)
    reasons.append(_held(tensor, extra))
    return _Tensor(
        Record(
            address + int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0,
            tensor.numel() * tensor.element_size(),
            _C._storage_address(tensor),
            address,
            size,
            _DEVICES.get(tensor.device.type, 100),
            tensor.device.index or 0,
            flags,
            max(reasons),
        ),
        _span(tensor),
        uses - _wrapper_uses - made,
        references - _wrapper_references,
        _base_of(tensor),
    )


def _grad_of(tensor: Tensor) -> tuple[int, int]:
    if not tensor.requires_grad:
        return 0, ADOPTABLE
    return IS_GRAD, LEAF if tensor.is_leaf else ADOPTABLE


def _held(tensor: Tensor, extra: int) -> int:
    if tensor._use_count() != 1:
        return SAVED
    return ADOPTABLE if extra == 0 else HELD if extra > 0 else UNKNOWN


def _is_contiguous(tensor: Tensor) -> bool:
    """Report whether elements lie in row-major order; strides of extents 0 and 1 mean nothing."""
    return tensor.is_contiguous()


def _span(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _judge_storages(tensors: Sequence[_Tensor]) -> dict[int, int]:
    """Return for each storage whether its entries, and one dead base, explain all its users."""
    groups: dict[int, list[_Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.record.storage, []).append(tensor)
    return {storage: _judge_storage(storage, group) for storage, group in groups.items()}


def _judge_storage(storage: int, group: list[_Tensor]) -> int:
    if group[0].references != 0:
        return STORAGE
    bases = [t.base for t in group if t.base is not None and t.base.storage == storage]
    different = {base.identity for base in bases}
    if group[0].uses == len(group) == 1 and not bases:
        return ADOPTABLE
    if any(t.record.reason > OVERLAP for t in group):
        return SHARED
    if len(different) > 1 or group[0].uses != len(group) + len(different):
        return SHARED
    if bases and (bases[0].uses != len(bases) + 1 or bases[0].references != _base_references):
        return SHARED
    return OVERLAP if _overlap(group) else ADOPTABLE


def _overlap(group: list[_Tensor]) -> bool:
    spans = sorted((t.record.address, t.span) for t in group if t.span > 0)
    ends = [lo + span for lo, span in spans]
    return any(end > lo for end, (lo, _) in zip(ends, spans[1:], strict=False))


def _settle(tensor: _Tensor, judged: dict[int, int]) -> Record:
    record, base = tensor.record, tensor.base
    if base is not None and base.storage == record.storage:
        record = record._replace(flags=record.flags | IS_VIEW)
    if record.reason <= OVERLAP:
        record = record._replace(reason=max(record.reason, judged[record.storage]))
    return record


# ---- what adopted outputs are made with where torch's C functions are not to be had ----


def hold(tensor: Tensor) -> tuple[Tensor, int, int, int]:
    """Return a tensor of its own over the storage of `tensor`: it, and identity, address, bytes."""
    with _C.DisableTorchFunction():
        storage = tensor.untyped_storage()
        keeper = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    return keeper, storage._cdata, storage.data_ptr(), storage.nbytes()


def over(like: Tensor, source: Tensor, offset: int, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor like `like` over the storage of `source`, `offset` bytes from its start."""
    with _C.DisableTorchFunction():
        made: Any = torch.empty(0, dtype=like.dtype, device=source.device)
        made.set_(source.untyped_storage(), offset // like.element_size(), shape)
    return made  # type: ignore[no-any-return]


def imported(capsule: Any) -> Tensor:
    """Return the tensor in a DLPack capsule."""
    tensor: Tensor = _C._from_dlpack(capsule)
    return tensor


def storage_of(tensor: Tensor) -> int:
    """Return the identity of the storage of `tensor`."""
    return int(_C._storage_address(tensor))
