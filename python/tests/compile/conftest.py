"""Each test compiles anew, and leaves nothing that another one might find compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
