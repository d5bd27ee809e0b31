"""Says in words why an entry is not adopted, and who holds it where the interpreter can tell.

Only for texts: slow, and never trusted for a decision.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import inspect
import sys
import threading
from pathlib import Path
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType

_WORDS = (
    "nobody else holds it",
    "its elements do not lie row after row in memory",
    "its memory was not made by torch's allocator: a NumPy array, a buffer, DLPack or another "
    "process may see it",
    "it shares bytes with another entry",
    "it is held",
    "torch holds it: saved for backward, an attribute of a script module, exported, or the base of "
    "a view",
    "its storage is used by a tensor that is no entry",
    "its storage object is held",
    "it is a leaf that requires grad",
    "the same tensor is an entry twice",
    "there is more to it than its memory",
    "a dispatch mode, tracer or transform of torch.func is active",
    "only torch tells who uses the memory of a tensor",
    "who uses its memory could not be found out",
)
_HELD, _SAVED, _SHARED, _STORAGE, _NOT_PLAIN = 4, 5, 6, 7, 10  # of bridge/own.h


def why(entry: Any, reason: int, known_containers: Sequence[Any] = ()) -> str:
    """Return one sentence, without a full stop, that says why `entry` may not be written over.

    Parameters
    ----------
    entry : Tensor or other array
        No reference to it is kept.
    reason : int
        What the survey said of it.
    known_containers : sequence
        Objects whose references to entries are accounted for: the user's containers.

    Returns
    -------
    str
        Such as ``"held by the variable 't' of f() at train.py:12"``.
    """
    if not 0 <= reason < len(_WORDS):
        return "for an unknown reason"
    try:
        known = {id(container) for container in known_containers}
        return _sentence(entry, reason, _Scope(_frames(sys._getframe(1)), known))
    except Exception:  # objects of any kind are looked at, and may answer in any way
        return _WORDS[reason]


class _Scope(NamedTuple):
    """Where to look for holders."""

    frames: list[FrameType]  # of running functions, innermost first, without those of goflat
    known: set[int]  # ids of objects that are no holders


def _frames(caller: FrameType) -> list[FrameType]:
    """List the frames of all threads.

    The frames below `caller` must not become objects: they would refer to themselves, and keep
    what they look at until the garbage collector comes by.
    """
    others = sys._current_frames()
    del others[threading.get_ident()]
    chains = [_chain(frame) for frame in (caller, *others.values())]
    return [frame for chain in chains for frame in chain if not _is_ours(frame)]


def _chain(frame: FrameType | None) -> list[FrameType]:
    chain = []
    while frame is not None:
        chain.append(frame)
        frame = frame.f_back
    return chain


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("goflat.")


def _sentence(entry: Any, reason: int, scope: _Scope) -> str:
    if reason == _HELD:
        return f"held {_holder(entry, scope)}"
    if reason == _STORAGE:
        return f"its storage object is held {_holder(entry.untyped_storage(), scope)}"
    if reason == _NOT_PLAIN:
        return f"{_WORDS[reason]} ({type(entry).__name__})"
    if reason == _SHARED:
        return _user(_WORDS[reason], _sharing(entry, scope.known), scope)
    if reason == _SAVED:
        return _user(_WORDS[reason], _view(entry), scope)
    return _WORDS[reason]


def _user(words: str, tensor: Any, scope: _Scope) -> str:
    """Return `words` and, if a tensor was found, what it is and who holds it."""
    if tensor is None:
        return words
    return f"{words}: one of shape {tuple(tensor.shape)}, held {_holder(tensor, scope)}"


def _sharing(entry: Any, known: set[int]) -> Any:
    """Find a tensor over the storage of `entry` that no known container refers to, or None.

    No generator: a suspended one would refer to what it has found.
    """
    import torch

    address: Callable[[Any], int] = torch._C._storage_address  # type: ignore[attr-defined]
    storage = address(entry)
    for tensor in _tensors():
        if tensor is entry or tensor.layout is not torch.strided or address(tensor) != storage:
            continue
        if not any(id(referrer) in known for referrer in gc.get_referrers(tensor)):
            return tensor
    return None


def _view(entry: Any) -> Any:
    """Find a view of `entry`, or None."""
    for tensor in _tensors():
        if tensor._is_view() and tensor._base is entry:
            return tensor
    return None


def _tensors() -> list[Any]:
    """List all tensors; lazily, all objects would stay alive in a cycle with those that ask."""
    import torch

    return [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]


# ---- holders ----


def _holder(thing: Any, scope: _Scope) -> str:
    """Say who refers to `thing`."""
    found = _variable(thing, scope.frames) or _container(thing, scope.known)
    unseen = "something that Python does not list: a NumPy array, a capsule, torch itself"
    return f"by {found or unseen}"


def _variable(thing: Any, frames: list[FrameType]) -> str | None:
    """Find a local variable of a running function."""
    if sys.gettrace() is not None:  # a debugger would write its view of the variables back
        return None
    for frame in frames:
        for name in _names(frame, thing):
            word = "loop variable" if _is_loop_variable(frame.f_code, name) else "variable"
            return f"the {word} {name!r} of {_place(frame)}"
    return None


def _names(frame: FrameType, thing: Any) -> list[str]:
    """Return the local variables of `frame` that are `thing`.

    Before Python 3.13 a look at a function's variables leaves a dict with copies of them in its
    frame, which is emptied unless somebody else has it.
    """
    variables = frame.f_locals
    if variables is frame.f_globals:
        return []
    names = [name for name, value in list(variables.items()) if value is thing]
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(variables) is dict
    if is_copy and sys.getrefcount(variables) <= 3:  # the frame, `variables`, the argument
        variables.clear()
    return names


def _is_loop_variable(code: CodeType, name: str) -> bool:
    storing = False
    for step in dis.get_instructions(code):
        if step.opname == "FOR_ITER":
            storing = True
        elif storing and step.opname.startswith("STORE_"):
            named = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            if name in named:
                return True
        elif not step.opname.startswith(("UNPACK_", "CACHE", "EXTENDED_ARG")):
            storing = False
    return False


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name}() at {Path(code.co_filename).name}:{frame.f_lineno}"


def _container(thing: Any, known: set[int]) -> str | None:
    """Find an object that refers to `thing`: something with a name rather than without.

    No function in here may capture `thing`: its cell would be found.
    """
    referrers = [r for r in gc.get_referrers(thing) if not _is_known(r, known)]
    for referrer in referrers:
        text = _named(referrer, thing)
        if text:
            return text
    return _nameless(referrers[0]) if referrers else None


def _is_known(referrer: Any, known: set[int]) -> bool:
    return id(referrer) in known or (isinstance(referrer, FrameType) and _is_ours(referrer))


def _named(referrer: Any, thing: Any) -> str | None:
    if type(referrer) is dict:
        return _of_namespace(referrer, thing)
    if isinstance(referrer, (FunctionType, MethodType)):
        return f"the function {referrer.__qualname__}()"
    if isinstance(referrer, (list, tuple, set, frozenset, dict, CellType, FrameType)):
        return None
    for name, value in _attributes(referrer):
        if value is thing:
            return f"the attribute {name!r} of a {type(referrer).__name__}"
    return None


def _attributes(owner: Any) -> Iterable[tuple[str, Any]]:
    """Return what `owner` has in its dict and slots, running no code of its class."""
    with contextlib.suppress(AttributeError):
        yield from list(object.__getattribute__(owner, "__dict__").items())
    for cls in type(owner).__mro__:
        for name, member in list(vars(cls).items()):
            if inspect.ismemberdescriptor(member):
                try:
                    yield name, member.__get__(owner)
                except AttributeError:  # a slot that has not been set
                    continue


def _of_namespace(namespace: dict[Any, Any], thing: Any) -> str | None:
    key = next((key for key, value in list(namespace.items()) if value is thing), None)
    if key is None:
        return None
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module) is namespace:
            return f"the global variable {key!r} of {module.__name__}"
    for owner in gc.get_referrers(namespace):
        if not isinstance(owner, (dict, list, tuple, FrameType)) and _owns(owner, namespace):
            return f"the attribute {key!r} of a {type(owner).__name__}"
    return f"the key {key!r} of a dict"


def _owns(owner: Any, namespace: dict[Any, Any]) -> bool:
    try:
        return object.__getattribute__(owner, "__dict__") is namespace
    except AttributeError:
        return False


def _nameless(referrer: Any) -> str:
    if isinstance(referrer, (list, tuple, set, frozenset, dict)):
        return f"a {type(referrer).__name__} of length {len(referrer)}"
    if isinstance(referrer, CellType):
        return "a variable of an enclosing function"
    if isinstance(referrer, FrameType):
        return f"a variable of {_place(referrer)}"
    return f"a {type(referrer).__name__}"
