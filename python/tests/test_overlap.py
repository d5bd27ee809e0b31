"""Whether views share a byte, against the sets of bytes that they touch."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from goflat._overlap import View, overlap, overlaps, overlaps_itself


@st.composite
def views(draw: st.DrawFn) -> View:
    ndim = draw(st.integers(0, 3))
    shape = draw(st.tuples(*[st.integers(0, 4)] * ndim))
    strides = draw(st.tuples(*[st.integers(-14, 14)] * ndim))
    return View(draw(st.integers(0, 40)), shape, strides, draw(st.sampled_from([1, 2, 4, 8])))


def elements(view: View) -> list[set[int]]:
    """Return the bytes of each element."""
    addresses = [
        view.address + sum(i * stride for i, stride in zip(index, view.strides, strict=True))
        for index in product(*map(range, view.shape))
    ]
    return [set(range(address, address + view.itemsize)) for address in addresses]


def touched(view: View) -> set[int]:
    return set().union(*elements(view))


@given(views(), views())
def test_overlap(a: View, b: View) -> None:
    assert overlap(a, b) == bool(touched(a) & touched(b))


@given(views())
def test_overlaps_itself(view: View) -> None:
    assert overlaps_itself(view) == (sum(map(len, elements(view))) > len(touched(view)))


@given(views())
def test_span(view: View) -> None:
    low, high = view.span()
    assert (low, high - 1) == (min(touched(view)), max(touched(view))) if high > low else True
    assert (low == high) == (not touched(view))


@given(st.lists(views(), max_size=5), st.lists(views(), max_size=5))
def test_overlaps_finds_every_pair(outs: list[View], entries: list[View]) -> None:
    want = {
        (i, e)
        for i, out in enumerate(outs)
        for e, entry in enumerate(entries)
        if touched(out) & touched(entry)
    }
    assert set(overlaps(outs, entries)) == want


def test_large_interleaved_views_take_no_time() -> None:
    n = 10**6
    a = View(0, (n, n, n), (48 * n * n, 48 * n, 16), 8)
    b = View(8, (n, n, n), (48 * n * n, 48 * n, 16), 8)
    assert not overlap(a, b)
    assert overlap(a, a)
    assert not overlaps_itself(a)
