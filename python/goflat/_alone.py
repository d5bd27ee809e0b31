"""Whether entries still are nobody else's at the moment when they are written over."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any

from . import _ownership

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._records import Records


class Alone:
    """Asks the extension to look at the entries of a device right before a step that writes.

    Code of others may have run since they were surveyed: callbacks of weak references to entries
    that were given up, finalizers, hooks of a profiler. What it got hold of, be it a tensor, a view
    without a base or a storage, shows in the counts, but for what outputs of the job itself add.

    Parameters
    ----------
    grid : list
        The entries of the job; None for those that were given up.
    entries : sequence of int
        Which of them lie on the device.
    records : Records
        What the survey said of these.
    """

    def __init__(self, grid: list[Any], entries: Sequence[int], records: Records) -> None:
        self._grid, self._entries, self._records = grid, entries, records
        self._outputs: Counter[int] = Counter()  # of each storage
        self._alive: Sequence[int] = range(len(entries))  # positions in `entries`
        self.is_sure = False  # whether somebody has looked since entries were surveyed or given up
        self._looked_at: list[Any] = []
        self._keep: tuple[Any, ...] = ()

    def made(self, under: Iterable[int]) -> None:
        """Count an output over the memory of entries."""
        adopted = _ownership.IS_ADOPTED  # such an output is over what lies below them
        mine = (e for e in under if not self._records.flags(e) & adopted)
        self._outputs.update({self._records.storage(e) for e in mine})

    def dropped(self) -> None:
        """Count what is left after some entries were given up."""
        self.is_sure = False
        self._alive = [p for p, e in enumerate(self._entries) if self._grid[e] is not None]

    def words(self) -> array[int]:
        """Return what bridge_RunStep needs to look; `done` is to be called after it."""
        grid, alive = self._grid, self._alive
        whole = len(alive) == len(grid)
        records = self._records if whole else self._records.pick(alive)
        self._looked_at = grid if whole else [grid[self._entries[p]] for p in alive]
        made = array("i", map(self._outputs.get, records.all_storages(), repeat(0)))
        self._keep = records, made
        others = 0 if whole else 1  # references besides those of the list that is looked at
        addresses = records.pointer, made.buffer_info()[0]
        return array("q", (id(self._looked_at), others, *addresses))

    def done(self) -> None:
        """Refer to entries no more."""
        if self._looked_at is not self._grid:
            self._looked_at.clear()
        self._looked_at, self._keep = [], ()
        self.is_sure = True

    def entry(self, number: int) -> int:
        """Return which entry of the job bridge_RunStep has named."""
        return self._entries[self._alive[number - 1]]
