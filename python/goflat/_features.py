"""Reading ``features``: two container forms in, one key-major table out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ._errors import make, type_name

_WANT_FEATURES = "a mapping of sequences or a sequence of mappings"
_WANT_LIST = "a list with one array per batch"


class Features(NamedTuple):
    """The entries of a job in key-major order.

    Attributes
    ----------
    keys : tuple
        Keys in the order in which their rows are joined.
    batches : int
        Number of batches, the same for every key.
    grid : list
        Entry of key number k and batch b at index ``k * batches + b``.
    """

    keys: tuple[Any, ...]
    batches: int
    grid: list[Any]

    def place(self, index: int) -> tuple[Any, int]:
        """Return (key, batch) of the entry at `index`."""
        return self.keys[index // self.batches], index % self.batches

    def column(self, batch: int) -> list[Any]:
        """Return the entries of one batch in key order."""
        return self.grid[batch :: self.batches]


def read(features: Any) -> Features:
    """Read `features`, key-major or batch-major, without looking at any entry."""
    if isinstance(features, Features):
        return features
    if isinstance(features, Mapping):
        return _key_major(features)
    return _batch_major(sequence(features, None, _WANT_FEATURES))


def read_tensors(tensors: Any) -> Features:
    """Read the argument of `cat`: one batch whose keys are positions."""
    entries = sequence(tensors, None, "a list of arrays")
    if not entries:
        raise make("SHAPE", None, None, "no tensors", "at least one")
    return Features(tuple(range(len(entries))), 1, entries)


def _key_major(features: Mapping[Any, Any]) -> Features:
    items = list(features.items())
    lists = [sequence(value, key, _WANT_LIST) for key, value in items]
    keys = _distinct(key for key, _ in items)
    batches = len(lists[0]) if lists else 0
    for key, entries in zip(keys, lists, strict=True):
        if len(entries) != batches:
            want = f"{batches}, as key {keys[0]!r} has"
            raise make("SHAPE", key, None, f"{len(entries)} batches", want)
    return Features(keys, batches, _flat(lists))


def _distinct(keys: Iterable[Any]) -> tuple[Any, ...]:
    """Return `keys` as a tuple; a mapping of a class of its own may have one twice."""
    known: dict[Any, None] = {}
    for key in keys:
        if key in known:
            raise make("SHAPE", key, None, "the key twice", "each key once")
        known[key] = None
    return tuple(known)


def _batch_major(batches: Sequence[Any]) -> Features:
    for b, batch in enumerate(batches):
        _check_batch(b, batch, batches[0])
    keys = _distinct(batches[0]) if batches else ()
    return Features(keys, len(batches), [batch[key] for key in keys for batch in batches])


def _check_batch(b: int, batch: Any, first: Mapping[Any, Any]) -> None:
    if not isinstance(batch, Mapping):
        raise make("DTYPE", None, b, type_name(batch), "a mapping from key to array")
    if not batch:
        raise make("SHAPE", None, b, "no keys", "at least one key")
    if batch.keys() != first.keys():
        raise _key_mismatch(b, batch, first)


def _key_mismatch(b: int, batch: Mapping[Any, Any], first: Mapping[Any, Any]) -> Exception:
    want = f"the keys of batch 0, {list(first)}"
    for key in first:
        if key not in batch:
            return make("SHAPE", key, b, "no such key", want)
    extra = next(key for key in batch if key not in first)
    return make("SHAPE", extra, b, "an extra key", want)


def sequence(value: Any, key: Any, want: str) -> list[Any]:
    """Return `value` as a list if it is a sequence of entries; strings and arrays are none.

    A list of our own, so that its length and its entries agree whatever happens to `value`.
    """
    # A tuple of types: Dynamo of torch 2.6 knows no union.
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return list(value)
    raise make("DTYPE", key, None, type_name(value), want)


def _flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))
