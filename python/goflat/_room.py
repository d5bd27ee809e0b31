"""Free room of collected ranges: what a plan may write besides the entries."""

from __future__ import annotations

import sys
import threading
from typing import Any

from . import _native, _pools
from ._errors import DeviceError

_Span = tuple[int, int]
_GRANULE = 512  # torch gives out memory in multiples of so many bytes


class Room:
    """Memory of collected ranges that is nobody else's, for a plan over entries that lie there.

    Attributes
    ----------
    pieces : list of (range, begin, end)
        Free addresses: what torch has given to nobody, and slack. They may be written after
        `retire`.
    everything : bool
        Whether all entries lie in collected ranges.
    """

    def __init__(self, device: Any, records: Any) -> None:
        self._device: int = device.index
        self._held: list[_Span] = []  # pieces, claimed
        self._outputs: list[_Span] = []
        self.pieces: list[tuple[int, int, int]] = []
        self.everything = True
        with _pools.lock:
            for range_ in self._find(records):
                self.pieces += [(range_, *piece) for piece in _free(range_, self._device)]

    def _find(self, records: Any) -> list[int]:
        """Return the ranges that entries lie in."""
        found: dict[int, None] = {}
        start = stop = 0  # the memory of the range of the entry before
        for e in range(len(records)):
            address = records.address(e)
            if start <= address < stop or not records.nbytes(e):
                continue
            answer = _core().bridge_CollectRange(address)
            if answer:
                range_, start, stop = map(int, answer.split())
                found[range_] = None
            else:
                self.everything = False
        return list(found)

    def claim(self, lo: int, hi: int) -> int:
        """Keep the memory of an output until the C function at the returned address is called.

        0 for memory that is not collected, which needs no claim.
        """
        unclaim: int = _core().bridge_CollectClaim(lo, hi)
        if unclaim:
            self._outputs.append((lo, hi))
        return unclaim

    def retire(self) -> None:
        """Make the pieces writable for work on the current stream: nobody else gets them.

        Contexts of this thread that they belong to go on in other ranges.

        Raises
        ------
        DeviceError
            Another thread has used them since; nothing was changed.
        """
        stream = _stream(self._device)
        with _pools.lock:
            for range_ in {piece[0] for piece in self.pieces}:
                if range_ in _pools.owners:
                    _pools.owners[range_].renew()
                _core().bridge_CollectRoom(range_, stream, 1)
                self._check(_pairs(_core().bridge_CollectClaimed(range_)))
            for _, lo, hi in self.pieces:
                if not _core().bridge_CollectClaim(lo, hi):
                    raise self._gone()
                self._held.append((lo, hi))

    def _check(self, claimed: list[_Span]) -> None:
        """Make sure that only outputs of this job claim what they claim of the pieces."""
        own = list(self._outputs)
        for claim in claimed:
            if claim in own:
                own.remove(claim)
            elif any(claim[0] < hi and lo < claim[1] for _, lo, hi in self.pieces):
                raise self._gone()

    def _gone(self) -> DeviceError:
        self.end()
        return DeviceError(
            "got free memory that another thread uses by now, want it as planned: try again"
        )

    def end(self) -> None:
        """Let go of the pieces, but for what outputs claim."""
        while self._held:
            _core().bridge_CollectUnclaim(*self._held.pop())

    def __del__(self) -> None:
        """Let go of them where a call failed."""
        if _native._core is not None:
            self.end()


def _core() -> Any:
    return _native._core


def _stream(device: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)


def _free(range_: int, device: int) -> list[_Span]:
    """Return the free addresses of a range; none while another thread allocates there."""
    owner = _pools.owners.get(range_)
    if owner is not None and owner.thread != threading.get_ident():
        return []
    stream = _stream(device)
    free = _pairs(_core().bridge_CollectRoom(range_, stream, int(owner is None)))
    free += _inactive(range_, stream)
    return without(joined(free), _pairs(_core().bridge_CollectClaimed(range_)))


def _inactive(range_: int, stream: int) -> list[_Span]:
    """Return what torch has of a range and has given to nobody, in segments of the stream.

    That includes the end of a block that is larger than what was asked for: torch does not split a
    large block for less than 1 MiB. Blocks that wait for other streams are still somebody's.
    """
    free = []
    pool = _pools.of_range.get(range_)
    for segment in _pools.segments(pool) if pool else ():
        at = segment["address"]
        for block in segment["blocks"]:
            end = at + block["size"]
            if segment["stream"] == stream:
                free.append((at + _used(block), end))
            at = end
    return [(lo, hi) for lo, hi in free if lo < hi]


def _used(block: dict[str, Any]) -> int:
    """Return how many bytes of a block are somebody's."""
    if block["state"] == "inactive":
        return 0
    if block["state"] == "active_allocated":
        asked: int = block.get("requested_size", block["size"])
        return -(-asked // _GRANULE) * _GRANULE
    return int(block["size"])


def _pairs(text: str) -> list[_Span]:
    numbers = list(map(int, text.split()))
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def joined(spans: list[_Span]) -> list[_Span]:
    """Return disjoint spans in the order of addresses, with those that adjoin made one.

    >>> joined([(8, 9), (1, 3), (3, 4)])
    [(1, 4), (8, 9)]
    """
    whole: list[_Span] = []
    for lo, hi in sorted(spans):
        if whole and whole[-1][1] == lo:
            lo = whole.pop()[0]
        whole.append((lo, hi))
    return whole


def without(spans: list[_Span], taken: list[_Span]) -> list[_Span]:
    """Return what is left of `spans` beside `taken`; both are in the order of their starts.

    >>> without([(0, 10), (20, 30)], [(2, 4), (3, 6), (9, 25)])
    [(0, 2), (6, 9), (25, 30)]
    """
    left = []
    for lo, hi in spans:
        at = lo
        for start, stop in taken:
            if start < hi and stop > at:
                if start > at:
                    left.append((at, start))
                at = stop
        if at < hi:
            left.append((at, hi))
    return left
