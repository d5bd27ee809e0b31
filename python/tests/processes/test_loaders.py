"""goflat in the workers of a DataLoader, however they are started."""

from __future__ import annotations

import textwrap

import pytest

from helpers import child, engines

START = """
import warnings
import torch, goflat
from helpers.loaders import epochs
warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
if __name__ == "__main__":
    torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
    assert goflat.cat([torch.ones(2), torch.ones(1)]).tolist() == [1, 1, 1]
"""

needs_native = pytest.mark.skipif(engines.engine("native") is None, reason="no extension is built")


@needs_native
def test_forked_workers_fall_back_and_one_of_them_says_so() -> None:
    code = """
    native, told = epochs("fork", workers=2)
    assert native == [False] * 6
    (text,) = told
    assert "forked" in text and "spawn" in text
    assert epochs("fork", workers=2, packed=True) == ([False] * 6, [])
    """
    assert child.fork(START + textwrap.dedent(code)) == ""


@needs_native
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_workers_have_the_extension(method: str) -> None:
    code = f"""
if __name__ == "__main__":
    assert epochs({method!r}, packed={method == "spawn"}) == ([True] * 6, [])
"""
    child.run(START + code)


def test_workers_without_a_parent_that_loaded_goflat() -> None:
    """Forked before anybody imported goflat: they load the extension for themselves."""
    code = """
import torch

class Items(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        import goflat
        return goflat.cat([torch.full((2,), float(i)), torch.ones(1)]), goflat._native.available()

loader = torch.utils.data.DataLoader(Items(), num_workers=2, multiprocessing_context="fork")
found = list(loader)
assert [x[0, 0].item() for x, _ in found] == [0, 1, 2, 3]
print({bool(has) for _, has in found})
"""
    native = engines.engine("native") is not None
    assert child.fork(code) == f"{ {native} }\n"
