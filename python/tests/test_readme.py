"""The Python in the README runs, and its comments tell the truth about shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


def test_python_blocks() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    flat, features = names["flat"], names["features"]
    for b, output in enumerate(flat):
        assert torch.equal(output, torch.cat([features[k][b] for k in features]))
    assert flat.layout.rows["p3"] == (12, 0)
    assert flat.unflatten()["p2"][1].shape == (31, 256, 7, 7)
    assert names["goflat"].flatten(features, packed=True).buffer.shape == (93, 256, 7, 7)
    joined, parts = names["joined"], names["parts"]
    assert [len(batch) for batch in joined] == [4, 4]
    assert (joined.plan.growth, parts) == (0, {})


@pytest.mark.parametrize("name", re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()))
def test_links(name: str) -> None:
    assert (README.parent / name).exists()
