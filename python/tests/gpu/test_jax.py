"""JAX arrays on a GPU: joined by JAX itself, on its own streams and in its own memory."""

from __future__ import annotations

import os
from typing import Any

import pytest

import goflat

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests need memory too
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from helpers.jaxes import assert_same, job, oracle  # noqa: E402

pytestmark = pytest.mark.usefixtures("any_engine")
LOTS = 1 << 40


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int4", "bool", "int32"])
def test_values(dtype: str) -> None:
    features = job(dtype)
    assert_same(goflat.flatten(features), oracle(features))
    assert goflat.Layout.of(features).devices == ("gpu:0", "gpu:0")


def test_options() -> None:
    features = job(row_shape=(2, 3), dim=1)
    flat = goflat.flatten(features, dim=1, packed=True)
    assert_same(list(flat), oracle(features, 1))
    assert_same([flat.buffer], [jnp.concatenate(list(flat), 1)])
    (out,) = goflat.flatten({"a": [features["0"][0]]}, dim=1, dtype=jnp.bfloat16)
    assert out.dtype == jnp.bfloat16
    with pytest.raises(goflat.OwnershipError, match="arrays of JAX"):
        goflat.flatten(features, dim=1, out=oracle(features, 1))


def test_consuming() -> None:
    features = job()
    want = oracle(features)
    assert_same(goflat.flatten_(features, max_growth=LOTS), want)
    assert features == {}


def test_tracers() -> None:
    def total(x: Any, join: Any) -> Any:
        return sum((out**2).sum() for out in join(x))

    got = jax.jit(jax.grad(lambda x: total(x, goflat.flatten)))(job())
    want = jax.jit(jax.grad(lambda x: total(x, oracle)))(job())
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want))


def test_on_the_cpu_beside_a_gpu() -> None:
    """Read in place, and as bound to the CPU as the entries are."""
    cpu = jax.devices("cpu")[0]
    features = jax.device_put(job("bfloat16"), cpu)
    flat = goflat.flatten(features)
    assert_same(flat, oracle(features))
    assert flat.layout.devices == ("cpu:0", "cpu:0")
    with jax.default_device(cpu):
        features = job()
    flat = goflat.flatten(features)
    assert {device for out in flat for device in out.devices()} == {cpu}
    assert not any(out.committed for out in flat)
    with pytest.raises(goflat.DeviceError, match="key 'b', batch 0: got gpu:0, want cpu:0"):
        goflat.flatten({"a": features["0"][:1], "b": job()["0"][:1]})
