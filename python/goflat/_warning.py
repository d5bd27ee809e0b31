"""Whether anybody will see a warning: naming who holds an entry takes about 25 ms."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_EVERY_TIME = ("error", "always", "all")
_explained: set[tuple[str, int]] = set()  # lines of callers that were told in full


def in_full(text: str, category: type[Warning], stacklevel: int) -> bool:
    """Report whether a warning is worth the time that a full text takes.

    True where every warning is shown or raised, and where the caller's line warns for the first
    time; False where a filter drops it, and for what Python shows once per text, since texts of
    ragged jobs differ in their numbers.

    Parameters
    ----------
    text : str
        The short form, for filters to match.
    category : type
        Of the warning.
    stacklevel : int
        As for `warnings.warn`, counted from the caller of this function.
    """
    frame = _frame(stacklevel + 1)
    action = _action(text, category, frame)
    if action in _EVERY_TIME or action == "ignore":
        return action != "ignore"
    line = frame.f_code.co_filename, frame.f_lineno
    first = line not in _explained
    _explained.add(line)
    return first


def _frame(level: int) -> FrameType:
    """Return the frame that a warning of this level is about; the outermost if there are fewer."""
    frame = sys._getframe(1)
    while level > 1 and frame.f_back is not None:
        frame, level = frame.f_back, level - 1
    return frame


def _action(text: str, category: type[Warning], frame: FrameType) -> str:
    """Return what the filters make of a warning, as `warnings` decides it."""
    module = str(frame.f_globals.get("__name__", "<unknown>"))
    for action, message, kind, where, line in list(warnings.filters):
        fits = _matches(message, text) and issubclass(category, kind) and _matches(where, module)
        if fits and line in (0, frame.f_lineno):
            return action
    return "default"


def _matches(pattern: Any, text: str) -> bool:
    """Match as a filter does: the interpreter's own have plain text in place of a pattern."""
    if pattern is None:
        return True
    return bool(pattern == text if isinstance(pattern, str) else pattern.match(text))
