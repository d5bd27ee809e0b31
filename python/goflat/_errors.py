"""Errors: one class per thing the caller can do, one place that words them.

The native side reports ``CODE|key index|batch|got|want``; the pure-Python side calls `make` with
the same five parts. Both therefore raise the same class with the same text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Error(Exception):
    """Base class of every error that goflat raises.

    Attributes
    ----------
    key : Hashable or None
        Key of the entry at fault; None where no single key is (an ``out`` array, ``dim``).
    batch : int or None
        Batch of the entry or ``out`` array at fault; for `cat`, the position in ``tensors``.
    got : str or None
        What was found there.
    want : str or None
        What the call needs there.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: Any = None,
        batch: int | None = None,
        got: str | None = None,
        want: str | None = None,
    ) -> None:
        self.args = (message,)  # as Exception.__init__ does, which Dynamo cannot follow
        self.key = key
        self.batch = batch
        self.got = got
        self.want = want


class ShapeError(Error, ValueError):
    """Shapes, lengths or ``dim`` do not fit together."""


class DTypeError(Error, TypeError):
    """Something is not an array of the dtype, framework or kind that the call needs."""


class DeviceError(Error, RuntimeError):
    """Entries of one batch lie on several devices, or on one that goflat cannot read."""


class OverlapError(Error, ValueError):
    """An ``out`` array shares memory with an entry, with another ``out`` or with itself."""


class OwnershipError(Error, RuntimeError):
    """An array may not be overwritten: it is read-only, or autograd relies on it."""


class MemoryLimitError(Error, RuntimeError):
    """The call would let memory grow beyond ``max_growth``; nothing has moved yet."""


class OutOfMemoryError(Error, RuntimeError):
    """The device has no memory left for the outputs."""


class GrowthWarning(UserWarning):
    """A consuming call had to let memory grow, and ``max_growth`` was not given."""


_CLASSES: dict[str, type[Error]] = {
    "SHAPE": ShapeError,
    "DTYPE": DTypeError,
    "DEVICE": DeviceError,
    "OVERLAP": OverlapError,
    "OWNER": OwnershipError,
    "LIMIT": MemoryLimitError,
    "OOM": OutOfMemoryError,
}


def make(code: str, key: Any, batch: int | None, got: str, want: str) -> Error:
    """Build the error for `code`; `key` and `batch` are None where they do not apply."""
    message = f"{_where(key, batch)}got {got}, want {want}"
    return _CLASSES.get(code, Error)(message, key=key, batch=batch, got=got, want=want)


def of_cat(error: Error) -> Error:
    """Reword an error about a job of one output: its keys are positions in ``tensors``."""
    if error.got is None:  # about no tensor, as out of memory
        return error
    text = f"got {error.got}, want {error.want}"
    where = "" if error.key is None else f"tensor {error.key}: "
    return type(error)(where + text, batch=error.key, got=error.got, want=error.want)


def from_native(text: str, keys: Sequence[Any]) -> Error:
    """Build the error that the native side reports as ``CODE|key index|batch|got|want``."""
    code, key, batch, got, want = text.split("|", 4)
    index = int(key)
    name = keys[index] if 0 <= index < len(keys) else None
    return make(code, name, int(batch) if int(batch) >= 0 else None, got, want)


def of_memory(error: BaseException) -> OutOfMemoryError | None:
    """Return our error for a framework's that says it got no memory; None for any other."""
    if not isinstance(error, Error) and isinstance(error, (MemoryError, RuntimeError)):
        text = str(error)
        if isinstance(error, MemoryError) or "allocate" in text:
            return OutOfMemoryError(text)
    return None


def type_name(value: object) -> str:
    """Name the type of `value` as a reader would write it: ``list``, ``torch.Tensor``, ``None``."""
    if value is None:
        return "None"
    cls = type(value)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def _where(key: Any, batch: int | None) -> str:
    parts = [] if key is None else [f"key {key!r}"]
    parts += [] if batch is None else [f"batch {batch}"]
    return f"{', '.join(parts)}: " if parts else ""
