"""What the native engine leaves to torch of a conversion: names, proofs, and filling on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._features import Features
    from ._flat import Flat

_likes: dict[Any, Any] = {}  # what `_proofs.like` returned, by dtypes of torch


def like(dtype: Any) -> Any:
    """Return a tensor of `dtype` if torch's entries may be converted to it natively, or None."""
    if type(dtype).__module__ != "torch":
        return None
    if dtype not in _likes:
        from . import _proofs

        _likes[dtype] = _proofs.like(dtype)
    return _likes[dtype]


def prove(table: Features, like: Any) -> bool:
    """Compare with torch what the job converts on its devices; False if that cannot be now."""
    from . import _proofs

    sources = {entry.dtype for entry in table.grid}
    devices = {entry.device for entry in table.grid}
    return all([_proofs.prove(device, sources, like) for device in devices])


def fill_flat(flat: Flat[Any], table: Features, dim: int, packed: bool) -> None:
    """Convert the entries of a job into its outputs, on the CPU."""
    columns = [table.column(b) for b in range(table.batches)]
    if packed:
        buffer = flat[0] if flat.buffer is None else flat.buffer  # not cut yet, or by the extension
        fill([buffer], [[entry for column in columns for entry in column]], dim)
    else:
        fill(flat, columns, dim)


def fill(outputs: list[Any], columns: list[list[Any]], dim: int) -> None:
    """Convert the entries of each output into it, on the CPU."""
    from . import _converting

    _converting.fill(outputs, columns, dim)
