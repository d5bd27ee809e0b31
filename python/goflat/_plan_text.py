"""What a plan says to people: a headline, then a line for all that costs something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._layout import Layout
    from ._plan import Plan

_LINES = 20  # of copied entries that a text lists
_KEYS = 8  # that an error lists


def headline(plan: Plan) -> str:
    """Say in one line what a call moves and takes."""
    layout = plan.layout
    devices = ", ".join(dict.fromkeys(map(str, layout.devices))) or "no device"
    count = len(layout.keys) * layout.batches
    parts = _outlook(plan) if isinstance(plan.growth, tuple) else _costs(plan)
    return f"{count} entries, {size(plan.nbytes)} on {devices}: {', '.join(parts)}"


def _costs(plan: Plan) -> Iterable[str]:
    yield plan.strategy
    yield f"{plan.in_place} of {plan.layout.batches} outputs in place"
    yield f"growth {_range(plan.growth)}"
    yield f"peak {_range(plan.peak)}"
    if any(str(device) != "cpu" for device in plan.layout.devices):  # else there are neither
        most = "up to " if plan.reserved_growth else ""
        yield f"reserved growth {most}{_range(plan.reserved_growth)}"
        yield f"tables {size(plan.tables)}"
    yield f"{_moved(plan)} of the rows move"


def _outlook(plan: Plan) -> Iterable[str]:
    """Say what a consuming call of some layout may cost, wherever its entries lie."""
    best, worst = plan.growth  # type: ignore[misc]
    yield f"growth {size(best)} at best, with all {plan.layout.batches} outputs in place"
    if worst != best:
        yield f"{size(worst)} at worst, with none"
    yield f"peak {_range(plan.peak)}"


def _moved(plan: Plan) -> str:
    rows = sum(map(sum, plan.layout.rows.values()))
    return f"{100 * plan.moved_rows / rows:.0f} %" if rows else "none"


def details(
    layout: Layout, lines: Iterable[str], reasons: dict[int, str], one_key: bool
) -> list[str]:
    """Return `lines`, and one for each entry that is copied."""
    said, copied = list(lines), sorted(reasons.items())
    said += [f"copied: {place(layout, e, one_key)}: {why}" for e, why in copied[:_LINES]]
    if len(copied) > _LINES:
        said.append(f"copied: {len(copied) - _LINES} more; see why() and to_dict()")
    return said


def place(layout: Layout, e: int, one_key: bool) -> str:
    """Say which entry e is: of `cat_`, whose tensors are counted, or of keys and batches."""
    if one_key:
        return f"tensor {e}"
    return f"key {layout.keys[e // layout.batches]!r}, batch {e % layout.batches}"


def no_key(layout: Layout, key: Any) -> KeyError:
    """Return the error for a key that `layout` has not."""
    keys = ", ".join(map(repr, layout.keys[:_KEYS])) + (", ..." if layout.keys[_KEYS:] else "")
    return KeyError(f"there is no key {key!r}; there are {keys or 'none'}")


def no_batch(layout: Layout, batch: int) -> IndexError:
    """Return the error for a batch that `layout` has not."""
    count = layout.batches
    there = f"there are 0 to {count - 1}, or {-count} to -1 from the end" if count else "no batches"
    return IndexError(f"there is no batch {batch}; {there}")


def size(count: int) -> str:
    """Write bytes for people: ``40.1 MB``."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def _range(count: int | tuple[int, int]) -> str:
    if isinstance(count, tuple):
        return f"{size(count[0])} to {size(count[1])}"
    return size(count)
