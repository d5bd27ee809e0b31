"""What type checkers make of the public API; each line says what is to be revealed."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from typing_extensions import reveal_type

import goflat


def tensors(features: dict[str, list[Tensor]], batches: list[dict[str, Tensor]]) -> None:
    flat = goflat.flatten(features)
    reveal_type(flat)  # Flat[Tensor]
    reveal_type(flat[0])  # Tensor
    reveal_type(flat.buffer)  # Tensor | None
    reveal_type(flat.layout)  # Layout
    reveal_type(flat.unflatten())  # OrderedDict[Any, list[Tensor]]
    reveal_type(goflat.flatten(batches, dim=1, packed=True))  # Flat[Tensor]
    reveal_type(goflat.flatten(features, out=list(flat)))  # Flat[Tensor]
    reveal_type(goflat.cat(features["a"]))  # Tensor
    reveal_type(goflat.unflatten(flat, flat.layout))  # OrderedDict[Any, list[Tensor]]
    for batch in flat:
        reveal_type(batch)  # Tensor


def consumed(features: dict[str, list[Tensor]], batches: list[dict[str, Tensor]]) -> None:
    made = goflat.plan(features, inplace=True, max_growth=0)
    reveal_type(made)  # Plan
    reveal_type(made.growth)  # int | tuple[int, int]
    reveal_type(made.tables)  # int
    reveal_type(made.why("a", 0))  # str
    reveal_type(made.to_dict())  # dict[str, Any]
    reveal_type(made(features))  # Flat[Any]
    reveal_type(goflat.flatten_(features, max_growth=0))  # Flat[Tensor]
    reveal_type(goflat.flatten_(batches, wait=[]).plan)  # Plan
    reveal_type(goflat.cat_(features["a"]))  # Tensor
    reveal_type(goflat.plan(goflat.Layout.of(features)).layout)  # Layout


def arrays(features: dict[int, tuple[npt.NDArray[np.float32], ...]]) -> None:
    reveal_type(goflat.flatten(features)[0])  # ndarray[tuple[Any, ...], dtype[floating[_32Bit]]]


def layouts(features: Any) -> None:
    layout = goflat.Layout.of(features, dim=-1)
    reveal_type(layout.keys)  # tuple[Any, ...]
    reveal_type(layout.rows)  # Mapping[Any, tuple[int, ...]]
    reveal_type(layout.row_shape)  # tuple[int, ...]
    reveal_type(layout.dim)  # int
    reveal_type(goflat.memory())  # dict[str, int]


def arenas(layout: goflat.Layout, rows: Tensor) -> None:
    arena = goflat.Arena(layout)
    reveal_type(list(arena))  # list[Any]
    reveal_type(arena["a"][0])  # Any
    reveal_type(arena["a"][:1])  # tuple[Any, ...]
    reveal_type(arena.flat)  # Flat[Any]
    reveal_type(arena.layout)  # Layout
    arena.put("a", 0, rows)
    reveal_type(goflat.flatten(arena))  # Flat[Any]
    arena["a"][0] = rows  # error: index
    goflat.Arena({"a": [rows]})  # error: arg-type


def errors(error: goflat.ShapeError) -> None:
    reveal_type(error.batch)  # int | None
    reveal_type(error.got)  # str | None


def misuse(features: dict[str, list[Tensor]]) -> None:
    goflat.flatten(features, 1)  # error: call-overload
    goflat.flatten(3)  # error: call-overload
    goflat.cat(features["a"], 0, None)  # error: call-arg
    goflat.flatten_(features, 0)  # error: call-overload
    goflat.flatten_(features, dim=1)  # error: call-overload
    goflat.cat_(features["a"], max_growth="1")  # error: arg-type
