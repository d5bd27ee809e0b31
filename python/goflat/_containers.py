"""Whose the containers of a consuming call are: which entries can be taken out of them."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

from ._errors import make
from ._features import read, read_tensors
from ._flat import Flat

_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, Flat)


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
        self._inner: list[Any] = []  # the list of each key, the mapping of each batch, or the list
        self._taken = False  # whether entries are out of the containers
        self._key_major = not one_key and isinstance(features, Mapping)
        if one_key:
            self._inner.append(features)
            self._hold(range(len(self.table.grid)), _unfit(features, *_LISTS))
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
                outer or _unfit(entries, *_LISTS) or _shared(counts[k], f"the list of key {key!r}")
            )
            self._hold(range(k * size, (k + 1) * size), reason)

    def _read_mappings(self, features: Any) -> None:
        size, outer = self.table.batches, _unfit(features, *_LISTS)
        counts = _counts(dict(enumerate(features)), extra=1) if outer is None else ()
        for b, batch in enumerate(features):
            self._inner.append(batch)
            what = f"the mapping of batch {b}"
            reason = outer or _unfit(batch, *_DICTS) or _shared(counts[b], what)
            self._hold(range(b, len(self.table.grid), size), reason)

    def _hold(self, entries: range, reason: str | None) -> None:
        if reason is not None:
            self.held.update(dict.fromkeys(entries, reason))

    def name(self, e: int) -> str:
        """Say which entry e is, as a reader would."""
        key, batch = self.table.place(e)
        return f"tensor {key}" if self.one_key else f"key {key!r}, batch {batch}"

    def own(self) -> list[Any]:
        """Return the containers themselves, which are no holders."""
        return [self._features, *self._inner]

    def plain(self) -> Any:
        """Return the entries in containers that the extension reads."""
        if self.one_key:
            return self.table.grid
        size, grid = self.table.batches, self.table.grid
        return {key: grid[k * size : (k + 1) * size] for k, key in enumerate(self.table.keys)}

    def take(self) -> None:
        """Take all entries out that can be: None is put where they were.

        Code that runs meanwhile, such as callbacks of weak references, finds none of them.

        Raises
        ------
        OwnershipError
            If somebody has changed a container since it was read. Nothing has been taken then.
        """
        fit = [position for position in range(len(self._inner)) if self._is_fit(position)]
        for position in fit:
            now, then = self._values(position), self._entries(position)
            if len(now) != len(then) or not all(map(is_, now, then)):
                place = self.table.place(self._first(position))
                got, want = "a container that was changed during the call", "it left alone"
                raise make("OWNER", *place, got, want)
        self._taken = True
        for position in fit:
            self._fill(position, [None] * len(self._entries(position)))

    def drop(self, entries: Iterable[int]) -> None:
        """Refer no more to entries that were taken out."""
        for e in entries:
            self.table.grid[e] = None

    def give_back(self) -> None:
        """Put entries that were taken out and not dropped back to where they were."""
        if not self._taken:
            return
        self._taken = False
        for position in range(len(self._inner)):
            if self._is_fit(position):
                self._fill(position, self._entries(position))

    def _first(self, position: int) -> int:
        """Return an entry of a container."""
        return position * (self.table.batches if self._key_major else 1)

    def _is_fit(self, position: int) -> bool:
        return self._first(position) not in self.held

    def _entries(self, position: int) -> list[Any]:
        """Return what the table has of a container."""
        size, grid = self.table.batches, self.table.grid
        if self.one_key:
            return grid
        if self._key_major:
            return grid[position * size : (position + 1) * size]
        return grid[position::size]

    def _values(self, position: int) -> list[Any]:
        """Return what is in a container."""
        container = self._inner[position]
        if isinstance(container, list):
            return container
        return [container.get(key) for key in self.table.keys]

    def _fill(self, position: int, entries: list[Any]) -> None:
        container = self._inner[position]
        if isinstance(container, list):
            container[:] = entries
        else:
            container.update(zip(self.table.keys, entries, strict=True))

    def forget(self) -> None:
        """Refer to no entry any more."""
        self._inner.clear()
        self.table.grid.clear()

    def clear(self) -> None:
        """Empty the object that was passed in, and what is in it where nobody else holds that."""
        for position, container in enumerate(self._inner):
            if self._is_fit(position):
                container.clear()
        self.forget()
        if type(self._features) in (*_LISTS, *_DICTS):
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
