"""Who else uses the memory of an entry, asked in both ways."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from goflat import _native, _ownership
from goflat._ownership import (
    ADOPTABLE,
    FOREIGN,
    HELD,
    LEAF,
    MODE,
    NOT_PLAIN,
    NOT_TORCH,
    SAVED,
    SHARED,
    STORAGE,
)
from helpers.owning import Special, conv, new, reasons

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")


def test_counts_are_read_in_place_in_the_versions_of_torch_that_are_tested() -> None:
    assert _ownership.meet()
    assert _ownership.is_quick()


# Each case: entries, and whatever else holds them.


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
    assert seen == [MODE] * 2, way


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
