"""One array per batch out of a dict of per-key arrays, near the speed of a plain copy."""

from ._api import cat, flatten, unflatten
from ._arena import Arena
from ._bound import Bound
from ._collect import collect
from ._consume import cat_, flatten_
from ._errors import (
    DeviceError,
    DTypeError,
    Error,
    GrowthWarning,
    MemoryLimitError,
    OutOfMemoryError,
    OverlapError,
    OwnershipError,
    ShapeError,
)
from ._flat import Flat
from ._layout import Layout
from ._memory import memory
from ._plan import Plan, plan
from ._streams import record_stream
from ._version import __version__ as __version__

__all__ = [
    "Arena",
    "Bound",
    "DTypeError",
    "DeviceError",
    "Error",
    "Flat",
    "GrowthWarning",
    "Layout",
    "MemoryLimitError",
    "OutOfMemoryError",
    "OverlapError",
    "OwnershipError",
    "Plan",
    "ShapeError",
    "cat",
    "cat_",
    "collect",
    "flatten",
    "flatten_",
    "memory",
    "plan",
    "record_stream",
    "unflatten",
]
