"""Do two strided views share a byte? Exactly, also for views that interleave.

A view touches the bytes ``address + sum(i[k] * strides[k]) + r`` with ``0 <= i[k] < shape[k]`` and
``0 <= r < itemsize``. Two views share a byte if the two sums can be equal; flipping the sign of the
second turns that into one bounded linear equation over the integers, which `_reaches` solves.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Terms = list[tuple[int, int]]  # (coefficient > 0, largest multiple) of a sum


class View(NamedTuple):
    """A strided view of memory.

    Attributes
    ----------
    address : int
        Address of element (0, ..., 0).
    shape : tuple of int
        Elements along each dimension.
    strides : tuple of int
        Bytes from one element to the next along each dimension; may be negative or 0.
    itemsize : int
        Bytes of one element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def span(self) -> tuple[int, int]:
        """Return the first address touched and the one behind the last; equal if none is."""
        if 0 in self.shape:
            return self.address, self.address
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(step for step in reach if step < 0)
        return low, self.address + sum(step for step in reach if step > 0) + self.itemsize


def overlap(a: View, b: View) -> bool:
    """Report whether `a` and `b` share a byte."""
    (a_low, a_high), (b_low, b_high) = a.span(), b.span()
    if a_low == a_high or b_low == b_high or a_high <= b_low or b_high <= a_low:
        return False
    # a_low + x == b_high - 1 - y, where x and y run over the bytes of a and, backwards, of b
    return _reaches(_sorted([*_terms(a), *_terms(b)]), b_high - 1 - a_low)


def overlaps_itself(view: View) -> bool:
    """Report whether two elements of `view` share a byte."""
    if 0 in view.shape:
        return False
    dims = [(abs(stride), n) for n, stride in zip(view.shape, view.strides, strict=True) if n > 1]
    return any(_collides(dims[k:], view.itemsize) for k in range(len(dims)))


def overlaps(outs: Sequence[View], entries: Sequence[View]) -> Iterator[tuple[int, int]]:
    """Yield the indices (out, entry) of all pairs that share a byte; a view meets itself not.

    Outs are sorted by address, so that each entry meets only those whose spans reach its own.
    """
    spans = [out.span() for out in outs]
    order = sorted(range(len(outs)), key=spans.__getitem__)
    lows = [spans[i][0] for i in order]
    tops = list(accumulate((spans[i][1] for i in order), max))
    for e, entry in enumerate(entries):
        for i in _meeting(entry, lows, tops):
            if outs[order[i]] is not entry and overlap(outs[order[i]], entry):
                yield order[i], e


def _meeting(entry: View, lows: list[int], tops: list[int]) -> Iterator[int]:
    """Yield the positions of sorted spans that may reach into the span of `entry`."""
    low, high = entry.span()
    i = bisect_left(lows, high) - 1
    while i >= 0 and tops[i] > low:
        yield i
        i -= 1


def _terms(view: View) -> Terms:
    dims = zip(view.strides, view.shape, strict=True)
    return [*((abs(stride), n - 1) for stride, n in dims), (1, view.itemsize - 1)]


def _collides(dims: list[tuple[int, int]], itemsize: int) -> bool:
    """Report whether two elements that differ in the first of `dims`, and maybe later ones, meet.

    Their distance is d0*s0 + d1*s1 + ..., with 1 <= d0 < n0 and -nk < dk < nk; they meet where it
    lies within -itemsize < distance < itemsize. Each sum is shifted to start at 0.
    """
    (stride, n), *rest = dims
    slack = sum(s * (m - 1) for s, m in rest) + itemsize - 1
    terms = [(stride, n - 2), *((s, 2 * (m - 1)) for s, m in rest), (1, 2 * (itemsize - 1))]
    return _reaches(_sorted(terms), slack - stride)


def _sorted(terms: Iterable[tuple[int, int]]) -> Terms:
    """Merge terms of equal coefficient, and put the largest first."""
    tops: dict[int, int] = {}
    for c, top in terms:
        tops[c] = tops.get(c, 0) + top
    return sorted(((c, top) for c, top in tops.items() if c and top), reverse=True)


def _reaches(terms: Terms, target: int) -> bool:
    """Report whether sum(c * x) can be `target`, 0 <= x <= top, for terms in falling order of c.

    Each x is narrowed to what the smaller terms can still make up for, so strides that nest, as
    those of arrays do, leave two candidates a dimension.
    """
    if not terms:
        return target == 0
    (c, top), *rest = terms
    room = sum(d * m for d, m in rest)
    if not 0 <= target <= c * top + room or target % gcd(*(d for d, _ in terms)):
        return False
    first = max(0, -(-(target - room) // c))
    return any(_reaches(rest, target - c * x) for x in range(first, min(top, target // c) + 1))
