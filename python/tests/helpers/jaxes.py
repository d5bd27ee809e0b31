"""Jobs of JAX arrays, and JAX's own answer to them. Import where JAX is known to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Features = dict[str, list[jax.Array]]

ROWS = ((2, 1), (0, 4), (3, 2))  # of the small job: 3 keys x 2 batches, one entry empty
DTYPES = (
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"),
)


def array(shape: Sequence[int], dtype: Any = "float32", seed: int = 0) -> jax.Array:
    """Return an array of numbers that differ, as far as the dtype has so many."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 7 + 3 * seed) % 61
    return jax.device_put(numbers.reshape(shape).astype(jnp.dtype(dtype)))


def job(
    dtype: Any = "float32", rows: Any = ROWS, row_shape: Sequence[int] = (3,), dim: int = 0
) -> Features:
    """Return a key-major job: ``rows[k][b]`` rows along `dim` for key ``"k"`` and batch b."""
    return {
        str(k): [
            array((*row_shape[:dim], n, *row_shape[dim:]), dtype, seed=10 * k + b)
            for b, n in enumerate(line)
        ]
        for k, line in enumerate(rows)
    }


def oracle(features: Features, dim: int = 0) -> list[jax.Array]:
    """Return what `flatten` must return, by JAX itself."""
    return [jnp.concatenate(column, dim) for column in zip(*features.values(), strict=True)]


def assert_same(got: Any, want: list[jax.Array]) -> None:
    """Assert that arrays are of JAX, equal bit for bit, and as free or bound to a device."""
    assert len(got) == len(want)
    for b, (one, right) in enumerate(zip(got, want, strict=True)):
        assert type(one) is type(right), f"batch {b}"
        assert (one.dtype, one.shape) == (right.dtype, right.shape), f"batch {b}"
        assert one.devices() == right.devices(), f"batch {b}"
        assert one.committed == right.committed, f"batch {b}"
        assert np.asarray(one).tobytes() == np.asarray(right).tobytes(), f"batch {b}"
