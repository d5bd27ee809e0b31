"""memory() where there is a driver: it is asked nothing that would start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import goflat
from fake.child import in_child, lib

if TYPE_CHECKING:
    from fake.place import Fake


def test_starts_no_driver(fake: Fake) -> None:
    fake.run(
        "import goflat; assert goflat.memory() == {}\n"
        "assert 'libcuda.so' not in open('/proc/self/maps').read()"
    )


@in_child()
def test_copies_keep_nothing() -> None:
    grid, want = lib.small()
    for _ in range(3):
        lib.assert_right(goflat.flatten(lib.features(grid)), want)
        assert goflat.memory() == {}
