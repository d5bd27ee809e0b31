"""Whose the containers of a consuming call are: which entries can be taken out of them."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

from ._features import read, read_tensors

_DICTS = (dict, OrderedDict, defaultdict)


class Containers:
    """The entries of a job, and where each of them can be taken from.

    Attributes
    ----------
    table : Features
        The entries, key-major. Besides it, only the caller's containers refer to them.
    held : dict of int to str
        Entries that cannot be taken away, by index, and why: their container is held by
        somebody else, or cannot be emptied.
    """

    def __init__(self, features: Any, one_key: bool = False) -> None:
        self._features = features
        self._one_key = one_key
        self.table = read_tensors(features) if one_key else read(features)
        self.held: dict[int, str] = {}
        self._slots = self._find()

    def _find(self) -> list[tuple[Any, Any]]:
        """Return container and index of each entry."""
        if self._one_key:
            return self._line(self._features, len(self.table.grid))
        if isinstance(self._features, Mapping):
            return self._key_major(self._features)
        return self._batch_major(self._features)

    def _line(self, entries: Any, count: int) -> list[tuple[Any, Any]]:
        reason = None if type(entries) is list else f"they are in a {_name(entries)}"
        self._hold(range(count), reason)
        return [(entries, i) for i in range(count)]

    def _key_major(self, features: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        size, slots = self.table.batches, []
        outer = None if type(features) in _DICTS else f"they are in a {_name(features)}"
        counts = _counts(features) if outer is None else ()
        for k, key in enumerate(self.table.keys):
            entries = features[key]
            reason = outer or _reason(entries, list, counts[k], f"the list of key {key!r}")
            self._hold(range(k * size, (k + 1) * size), reason)
            slots += [(entries, b) for b in range(size)]
        return slots

    def _batch_major(self, features: Any) -> list[tuple[Any, Any]]:
        size = self.table.batches
        outer = None if type(features) is list else f"they are in a {_name(features)}"
        counts = _counts(dict(enumerate(features)), extra=1) if outer is None else ()
        for b, batch in enumerate(features):
            kind = type(batch) if type(batch) in _DICTS else dict
            reason = outer or _reason(batch, kind, counts[b], f"the mapping of batch {b}")
            self._hold(range(b, len(self.table.grid), size), reason)
        return [(batch, key) for key in self.table.keys for batch in features]

    def _hold(self, entries: range, reason: str | None) -> None:
        if reason is not None:
            self.held.update(dict.fromkeys(entries, reason))

    def own(self) -> list[Any]:
        """Return the containers themselves, which are no holders."""
        return [self._features, *{id(c): c for c, _ in self._slots}.values()]

    def drop(self, entries: Any) -> None:
        """Take entries out: None is put where they were, and the table forgets them."""
        for e in entries:
            self.table.grid[e] = None
            if e not in self.held:
                container, index = self._slots[e]
                container[index] = None

    def forget(self) -> None:
        """Refer to no entry any more."""
        self._slots.clear()
        self.table.grid.clear()

    def clear(self) -> None:
        """Empty the object that was passed in, and what is in it where nobody else holds that."""
        for e, (container, _) in enumerate(self._slots):
            if e not in self.held:
                container.clear()
        self.forget()
        if type(self._features) in (list, *_DICTS):
            self._features.clear()


def _reason(container: Any, kind: type, count: int, what: str) -> str | None:
    """Say why what is in a container counts as held, or None."""
    if type(container) is not kind:
        return f"they are in a {_name(container)}"
    if count > _alone(kind):
        return f"{what} is held by somebody else"
    return None


def _name(container: Any) -> str:
    return type(container).__name__


def _counts(containers: Mapping[Any, Any], extra: int = 0) -> list[int]:
    """Return how many references there are to each value of a mapping, seen from here."""
    return [sys.getrefcount(value) - extra for value in containers.values()]


def _alone(kind: type) -> int:
    """Return what `_counts` says of a value that is referred to by its mapping only."""
    if kind not in _alone_counts:
        _alone_counts[kind] = _counts({0: kind()})[0]
    return _alone_counts[kind]


_alone_counts: dict[type, int] = {}
