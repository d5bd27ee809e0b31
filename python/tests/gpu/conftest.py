"""The rules of the GPU suite: it needs a GPU, runs in the extension, and leaves nothing pending.

Complete without the conftest above it and without pyproject.toml, which ask for more packages than
a machine with a GPU may have.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from goflat import _fallback, _native
from gpu import support

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
HARMLESS = (
    "Failed to initialize NumPy",  # there need be none
    "ComplexHalf support",
    "BComplex32 support",
    "The AccumulateGrad node's stream",  # tests of streams do what it warns of
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    config.addinivalue_line("markers", "memcheck: small enough to run under compute-sanitizer")
    config.addinivalue_line("markers", "slow: takes seconds")
    for action in ("error", *(f"ignore:{text}" for text in HARMLESS)):
        config.addinivalue_line("filterwarnings", action)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reason = missing()
    if reason and os.environ.get("GOFLAT_REQUIRE_GPU") == "1":
        pytest.fail(f"GOFLAT_REQUIRE_GPU=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(f"needs a GPU: {reason}")
    if "any_engine" not in request.fixturenames:
        monkeypatch.setattr(_fallback, "flatten", left)
    yield
    support.wait()  # an error of a kernel belongs to the test that launched it
    assert _native._core.bridge_Live() == 0  # type: ignore[union-attr]


def missing() -> str:
    """Say what is missing to run here, or return ""."""
    if not _native.available():
        return f"the extension is not used: {_native.reason}"
    if support.DRY:
        return ""
    if not torch.cuda.is_available():
        return "torch sees none"
    return str(_native._core.bridge_Driver())  # type: ignore[union-attr]


def left(*_: Any) -> Any:
    raise AssertionError("the call left the extension for the fall-back")


@pytest.fixture
def any_engine() -> None:
    """Let a test use the fall-back, where that is the engine for the job."""


@pytest.fixture
def cuda() -> None:
    """Say that a test makes no sense in a dry run on the CPU."""
    if support.DRY:
        pytest.skip("needs streams, graphs or memory statistics of CUDA")


@pytest.fixture
def large(cuda: None) -> Iterator[None]:
    """Give memory of several GiB back after the test."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
