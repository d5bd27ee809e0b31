"""Teaches the extension where this torch keeps its counts, and proves what it has learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _counted, _ownership
from ._ownership import ADOPTABLE, FOREIGN, HELD, LEAF, SAVED, SHARED, STORAGE, STRIDED, TWICE

_C: Any = torch._C  # whose stub lacks most of what is used here

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor


def teach(core: ModuleType, slow: bool) -> bool:
    """Show `core` tensors in known states, and try it on others.

    Returns
    -------
    bool
        Whether it reads counts in place. If it should not or cannot, it asks `_counted`; and if
        that is wrong on any tensor too, nothing is ever adopted in this process.
    """
    counted = _counted.learn()
    if not slow and _show(core, _states()) and _is_right(core):
        return True
    _show(core, {})
    if not counted or not _is_right(core):
        _show(core, {"slow": _know_nothing})
    return False


_HOOKS = {
    "judge": _counted.is_plain,
    "slow": _counted.survey,
    "hold": _counted.hold,
    "over": _counted.over,
    "import": _counted.imported,
    "storage": _counted.storage_of,
}


def _show(core: ModuleType, probes: dict[str, Any]) -> bool:
    hooks = {**_HOOKS, **probes}
    return bool(core.bridge_LearnOwnership(id(hooks)))


def _know_nothing(tensors: list[Any], expected: int, made: list[int]) -> list[tuple[int, ...]]:
    del expected, made
    return [(0, 0, 0, 0, 0, 0, 0, 0, _ownership.UNKNOWN)] * len(tensors)


def _states() -> dict[str, Any]:
    """Return tables of objects and what Python says about them; columns are those of words.c."""
    with torch.inference_mode(False), torch.enable_grad(), _C.DisableTorchFunction():
        alone = [_new(3, 5), _new(2, 9, 2)]
        bases = [_new(n + 3, 4) for n in (1, 2, 5)]
        views = [[base[i : i + 2] for i in range(1, base.shape[0] - 2)] for base in bases]
        graded = [_new(7, 2).requires_grad_()]
        meta = [torch.zeros(6, 4, device="meta")]
        foreign = [torch.frombuffer(bytearray(n), dtype=torch.uint8) for n in (24, 56, 104)]
        idle, held = [_new(7, 4), _new(8, 4)], [_new(11, 4), _new(12, 4)]
        sizes = [(t, t.element_size()) for t in map(_of_dtype, _dtypes()) if t is not None]
        middle = [_new(n, 2)[1:5] for n in (6, 9)]
    holding = [t.untyped_storage() for t in held]
    wrappers = {_address(t): id(t.untyped_storage()) for t in (*idle, *held)}
    first = [family[0] for family in views]
    tensors = [(t, False) for t in (*alone, *bases, *meta)] + [(t, True) for t in (*graded, *first)]
    storages = [(t, 1, True) for t in (*alone, *idle)] + [(t, 1, False) for t in foreign]
    storages += [(t, len(family) + 1, True) for t, family in zip(bases, views, strict=True)]
    storages += [(t, -1, True) for t in held]
    return {
        "objects": [(id(t), t._cdata) for t, _ in tensors],
        "tensors": [_tensor(t, state) for t, state in tensors],
        "storages": [
            _storage(t, wrappers.get(_address(t), 0), users, own) for t, users, own in storages
        ],
        "views": [(view._cdata, base._cdata) for view, base in zip(first, bases, strict=True)],
        "sizes": sizes,
        "middle": middle,
        "keep": (tensors, storages, views, holding),  # all of them alive until they have been read
    }


def _new(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cpu")


def _tensor(t: Tensor, state: bool) -> tuple[int, ...]:
    keys = _C._dispatch_keys(t).raw_repr()
    return t._cdata, t._use_count(), id(t), _address(t), state, keys


def _storage(t: Tensor, wrapper: int, users: int, own: bool) -> tuple[int, ...]:
    size = t.numel() * t.element_size()
    uses = _C._storage_Use_Count(_address(t))
    return _address(t), uses, wrapper, t.data_ptr(), size, own, own, users


def _address(t: Tensor) -> int:
    return int(_C._storage_address(t))


def _dtypes() -> set[torch.dtype]:
    return {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def _of_dtype(dtype: torch.dtype) -> Tensor | None:
    """Return a tensor of `dtype`: a view, since making one would warn of dtypes half supported."""
    try:
        return torch.zeros(16, dtype=torch.uint8, device="cpu").view(dtype)
    except (RuntimeError, NotImplementedError, TypeError):  # quantised ones, which are never plain
        return None


# ---- proof ----


def _is_right(core: ModuleType) -> bool:
    """Report whether tensors in known states are told apart."""
    with torch.inference_mode(False), torch.enable_grad(), _C.DisableTorchFunction():
        cases = _cases()
    return all(
        [record.reason for record in _ownership.ask(core, entries, 0)] == want
        for entries, want, _ in cases
    )


def _cases() -> list[tuple[list[Any], list[int], Any]]:
    """Return lists of entries, the reasons that are right for them, and what holds them."""
    held, base, aliased, wrapped, asked = (_new(4, 3) for _ in range(5))
    asked.untyped_storage()
    leaf = torch.zeros(2, device="cpu", requires_grad=True)
    saving = leaf * 2
    twin = _new(3)
    # by C++ alone, as what is saved for backward: what autograd saves, hooks may keep elsewhere
    referred = _new(2)
    view = referred[1:]
    return [
        ([_new(4, 3), _new(2), saving.clone()], [ADOPTABLE] * 3, None),
        ([asked], [ADOPTABLE], None),
        ([held], [HELD], held),
        ([referred], [SAVED], view),
        ([leaf], [LEAF], None),
        ([twin, twin], [TWICE, TWICE], None),
        ([_new(4, 3).t()], [STRIDED], None),
        ([torch.frombuffer(bytearray(8), dtype=torch.uint8)], [FOREIGN], None),
        ([*torch.split(_new(6, 2), 2)], [ADOPTABLE] * 3, None),
        ([*torch.split(base, 2)], [SHARED] * 2, base),
        ([aliased.detach()], [SHARED], aliased),
        ([wrapped.detach()], [STORAGE], wrapped.untyped_storage()),
    ]
