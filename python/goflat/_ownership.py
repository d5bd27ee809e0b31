"""Who else uses the memory of entries: asks bridge/own.c, whose header says what answers mean."""

from __future__ import annotations

import struct
import threading
from array import array
from typing import Any, NamedTuple

from . import _native
from ._holders import why as why

# Reasons and flags of bridge/own.h.
ADOPTABLE, STRIDED, FOREIGN, OVERLAP, HELD, SAVED, SHARED, STORAGE, LEAF, TWICE = range(10)
NOT_PLAIN, MODE, NOT_TORCH, UNKNOWN = range(10, 14)
IS_STRIDED, IS_GRAD, IS_VIEW, IS_ADOPTED = 1, 2, 4, 8

_RECORD = struct.Struct("=QqQQqiiii")  # gf_own
_GRID = 1  # the reference that the list itself adds


class Record(NamedTuple):
    """What is known about one entry; see gf_own."""

    address: int
    bytes: int
    storage: int
    storage_address: int
    storage_bytes: int
    device_type: int
    device_index: int
    flags: int
    reason: int


def survey(entries: list[Any], expected: int = 0) -> list[Record]:
    """Say for each of `entries` whether its memory may be written over, and if not, why.

    Parameters
    ----------
    entries : list
        Tensors or other arrays. The list's own references are accounted for.
    expected : int
        How many more references to each entry are: those of the containers of the user.
    """
    if not meet():
        return [Record(0, 0, 0, 0, 0, 0, 0, 0, UNKNOWN)] * len(entries)
    return ask(_native._core, entries, expected)


def ask(core: Any, entries: list[Any], expected: int) -> list[Record]:
    """Do what `survey` does with an extension that has been taught."""
    records = array("B", bytes(_RECORD.size * len(entries)))
    try:
        core.bridge_Survey(id(entries), expected + _GRID, records.buffer_info()[0])
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
    return [Record(*fields) for fields in _RECORD.iter_unpack(records)]


_met: list[bool] = []  # [whether counts are read in place], once met
_meeting = threading.RLock()  # finalizers may call goflat while it learns


def meet(*, slow: bool = False) -> bool:
    """Teach the extension where this torch keeps its counts, once.

    Parameters
    ----------
    slow : bool
        Never read counts in place, but ask through Python attributes.

    Returns
    -------
    bool
        False while that cannot be: there is no extension, as in a forked child, or a mode or
        transform would fake the tensors to learn from.
    """
    if _native._core is None:
        return False
    if _met and not slow:
        return True
    with _meeting:
        if _met and not slow:
            return True
        if not _native._meet_torch() or _native.watched():
            return False
        from . import _calibrate

        _met[:] = [_calibrate.teach(_native._core, slow)]
    return True


def is_quick() -> bool:
    """Report whether counts are read in place."""
    return _met == [True]
