"""Whose the containers of a consuming call are: which entries can be taken out of them."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
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
        self.one_key = one_key
        self.table = read_tensors(features) if one_key else read(features)
        self.held: dict[int, str] = {}
        self._inner: list[Any] = []  # the list of each key, or the mapping of each batch
        self._key_major = not one_key and isinstance(features, Mapping)
        if one_key:
            self._hold(range(len(self.table.grid)), _unfit(features, list))
        elif self._key_major:
            self._read_lists(features)
        else:
            self._read_mappings(features)

    def _read_lists(self, features: Mapping[Any, Any]) -> None:
        size, outer = self.table.batches, _unfit(features, *_DICTS)
        counts = _counts(features) if outer is None else ()
        for k, key in enumerate(self.table.keys):
            entries = features[key]
            self._inner.append(entries)
            reason = (
                outer or _unfit(entries, list) or _shared(counts[k], f"the list of key {key!r}")
            )
            self._hold(range(k * size, (k + 1) * size), reason)

    def _read_mappings(self, features: Any) -> None:
        size, outer = self.table.batches, _unfit(features, list)
        counts = _counts(dict(enumerate(features)), extra=1) if outer is None else ()
        for b, batch in enumerate(features):
            self._inner.append(batch)
            what = f"the mapping of batch {b}"
            reason = outer or _unfit(batch, *_DICTS) or _shared(counts[b], what)
            self._hold(range(b, len(self.table.grid), size), reason)

    def _hold(self, entries: range, reason: str | None) -> None:
        if reason is not None:
            self.held.update(dict.fromkeys(entries, reason))

    def own(self) -> list[Any]:
        """Return the containers themselves, which are no holders."""
        return [self._features, *self._inner]

    def plain(self) -> Any:
        """Return the entries in containers that the extension reads."""
        if self.one_key:
            return self.table.grid
        size, grid = self.table.batches, self.table.grid
        return {key: grid[k * size : (k + 1) * size] for k, key in enumerate(self.table.keys)}

    def drop(self, entries: Iterable[int]) -> None:
        """Take entries out: None is put where they were, and the table forgets them."""
        for e in entries:
            self.table.grid[e] = None
            if e not in self.held:
                container, index = self._slot(e)
                container[index] = None

    def _slot(self, e: int) -> tuple[Any, Any]:
        """Return container and index of an entry."""
        if self.one_key:
            return self._features, e
        k, b = divmod(e, self.table.batches)
        return (self._inner[k], b) if self._key_major else (self._inner[b], self.table.keys[k])

    def forget(self) -> None:
        """Refer to no entry any more."""
        self._inner.clear()
        self.table.grid.clear()

    def clear(self) -> None:
        """Empty the object that was passed in, and what is in it where nobody else holds that."""
        step = self.table.batches if self._key_major else 1
        for position, container in enumerate(self._inner):
            if position * step not in self.held:
                container.clear()
        self.forget()
        if type(self._features) in (list, *_DICTS):
            self._features.clear()


def _unfit(container: Any, *kinds: type) -> str | None:
    """Say why nothing can be taken out of a container, or None."""
    name = type(container).__name__
    return None if type(container) in kinds else f"they are in a {name}"


def _shared(count: int, what: str) -> str | None:
    """Say that a container is held besides by the one it is in, or None."""
    return f"{what} is held by somebody else" if count > _ALONE else None


def _counts(containers: Mapping[Any, Any], extra: int = 0) -> list[int]:
    """Return how many references there are to each value of a mapping, seen from here."""
    return [sys.getrefcount(value) - extra for value in containers.values()]


_ALONE = _counts({0: list[int]()})[0]  # what `_counts` says of a value that only its mapping holds
