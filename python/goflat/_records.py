"""The answers of the ownership survey as one block of memory, the way the extension takes it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from . import _native, _ownership

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WORDS = 7  # of 64 bits in a gf_own of bridge/own.h
_ADDRESS, _BYTES, _STORAGE, _FACTS = 0, 1, 2, 6  # the last word is flags and, above them, reason
_PLACE = 4  # words that say where an entry lies
_HALF = 1 << 32


class Records:
    """One gf_own for each entry of a job."""

    def __init__(self, words: array[int]) -> None:
        self._words = words

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._words) // _WORDS

    @property
    def pointer(self) -> int:
        """Where the records lie, as long as this object lives."""
        return self._words.buffer_info()[0]

    def address(self, e: int) -> int:
        """Return where entry e lies."""
        return self._words[_WORDS * e + _ADDRESS]

    def nbytes(self, e: int) -> int:
        """Return the bytes of entry e."""
        return self._words[_WORDS * e + _BYTES]

    def storage(self, e: int) -> int:
        """Return the identity of the storage of entry e."""
        return self._words[_WORDS * e + _STORAGE]

    def all_storages(self) -> array[int]:
        """Return the identity of the storage of each entry."""
        return self._words[_STORAGE::_WORDS]

    def reason(self, e: int) -> int:
        """Return why entry e may not be adopted."""
        return self._words[_WORDS * e + _FACTS] >> 32

    def flags(self, e: int) -> int:
        """Return what else is known about entry e."""
        return self._words[_WORDS * e + _FACTS] % _HALF

    def facts(self) -> set[tuple[int, int]]:
        """Return what there is among the entries: pairs of reason and flags."""
        return {divmod(word, _HALF) for word in set(self._words[_FACTS::_WORDS])}

    def kept(self) -> list[int]:
        """Return the entries that have bytes and may not be adopted."""
        if all(reason == _ownership.ADOPTABLE for reason, _ in self.facts()):
            return []
        words = zip(self._words[_FACTS::_WORDS], self._words[_BYTES::_WORDS], strict=True)
        return [e for e, (facts, count) in enumerate(words) if count and facts >= _HALF]

    def storages(self) -> list[int]:
        """Return an entry of each storage."""
        return list(
            dict(zip(self._words[_STORAGE::_WORDS], range(len(self)), strict=True)).values()
        )

    def hold(self, e: int, reason: int = _ownership.HELD) -> None:
        """Count entry e as held, whatever the survey found."""
        self._words[_WORDS * e + _FACTS] = reason * _HALF + self.flags(e)

    def hold_neighbours(self, held: Iterable[int]) -> None:
        """Count all as shared that lie in a storage of an entry of `held`, but are not in it."""
        storages = self._words[_STORAGE::_WORDS]
        kept = {storages[e] for e in held}
        for e, storage in enumerate(storages):
            if storage in kept and self.reason(e) <= _ownership.OVERLAP:
                self.hold(e, _ownership.SHARED)

    def changed(self, now: Records) -> int | None:
        """Return an entry that is not as it was; None if there is none.

        What may be given up must be nobody else's still; what is only read must lie where it lay.
        """
        for e in range(len(self)) if self._words != now._words else ():
            count = _WORDS if self.reason(e) <= _ownership.OVERLAP else _PLACE
            at = slice(_WORDS * e, _WORDS * e + count)
            if self._words[at] != now._words[at]:
                return e
        return None

    def pick(self, entries: Sequence[int]) -> Records:
        """Return the records of some entries; a range stands for all."""
        if type(entries) is range:
            return self
        picked = array("q")
        for e in entries:
            picked.extend(self._words[_WORDS * e : _WORDS * (e + 1)])
        return Records(picked)


def survey(grid: list[Any], containers: int) -> Records | None:
    """Ask who else uses the entries of `grid`, each of which is in so many `containers` besides.

    None if this torch cannot be asked.
    """
    if not _ownership.meet():
        return None
    records = Records(array("q", bytes(8 * _WORDS * len(grid))))
    try:
        _native._core.bridge_Survey(id(grid), containers + 1, records.pointer)  # type: ignore[union-attr]
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
    return records
