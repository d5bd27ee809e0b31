"""``__dlpack__``: good capsules, bad ones, and each deleter once."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import goflat
from fake.child import in_child, lib

GOOD = {
    "versioned": {"name": "dltensor_versioned"},
    "legacy": {"name": "dltensor"},
    "versioned, NULL deleter": {"name": "dltensor_versioned", "deleter": False},
    "legacy, NULL deleter": {"name": "dltensor", "deleter": False},
}
BAD = {
    "used": {"name": "used_dltensor"},
    "used, versioned": {"name": "used_dltensor_versioned"},
    "wrong name": {"name": "tensor"},
    "generation 2": {"name": "dltensor_versioned", "major": 2},
}


@in_child()
def test_good() -> None:
    for name, options in GOOD.items():
        before = len(lib.fakearray.deleted())
        grid, want = lib.small(lib.CPU, lib.producer(**options))
        flat = goflat.flatten(lib.features(grid))
        assert [out.tolist() for out in flat] == [x.tolist() for x in want]
        assert lib.fakearray.deleted()[before:] == [int("NULL" not in name)] * 6, name


@in_child()
def test_bad() -> None:
    """Tensors read before are given back; the bad capsule stays its producer's."""
    grid, want = lib.small(lib.CPU, lib.Producer)
    for place in 0, 4:
        entry = grid[place // 2][place % 2]
        for name, options in BAD.items():
            before = len(lib.fakearray.deleted())
            entry.options = options
            where = f"key '{place // 2}', batch 0"
            with lib.raising(goflat.DTypeError, where):
                goflat.flatten(lib.features(grid))
            gc.collect()
            counts = lib.fakearray.deleted()[before:]
            bad = counts[
                place :: place + 1
            ]  # those before it were read each time, by us and by NumPy
            assert set(counts) - set(bad) <= {1}, name
            assert bad == [int(name == "generation 2")] * len(bad), name  # deleted by its producer
        del entry.options
        flat = goflat.flatten(lib.features(grid))
        assert [out.tolist() for out in flat] == [x.tolist() for x in want]


@in_child()
def test_no_strides_offsets_and_odd_shapes() -> None:
    def given(values: np.ndarray) -> Any:
        return lib.place(values, lib.CPU, lib.Producer)

    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    entries = [host, host[1:2], host[::-1], host[:, ::2], host[:, ::-3], host[:0]]
    assert [given(x).strides is None for x in entries] == [True, True, False, False, False, True]
    for x in entries:
        (out,) = goflat.flatten({"a": [given(x)], "b": [given(x)]})
        assert out.tolist() == np.concatenate([x, x]).tolist()
    scalar = host[0, 0:1].reshape(())
    with lib.raising(goflat.ShapeError, "key 'a', batch 0: got", "at least 1"):
        goflat.flatten({"a": [given(scalar)]})
    with lib.raising(goflat.ShapeError, "key 'b', batch 0: got (), want (*, 6)"):
        goflat.flatten({"a": [given(host)], "b": [given(scalar)]})


@in_child()
def test_errors_after_reading_delete_everything_once() -> None:
    grid, _ = lib.small(lib.CPU, lib.Producer)
    clean = lib.alive()
    for options in ({"dim": 4}, {"out": [1, 2]}, {"out": []}):
        with lib.raising(goflat.Error):
            goflat.flatten(lib.features(grid), **options)
    assert lib.alive() == clean
    assert set(lib.fakearray.deleted()) == {1}


@in_child()
def test_a_producer_from_before_versions() -> None:
    """One that knows neither ``max_version`` nor any other argument."""

    class Old(lib.Producer):
        def __dlpack__(self) -> object:  # type: ignore[override]
            return self.export("dltensor")

    grid, want = lib.small(lib.CPU, Old)
    flat = goflat.flatten(lib.features(grid))
    assert [out.tolist() for out in flat] == [x.tolist() for x in want]


@in_child()
def test_a_producer_that_raises() -> None:
    class Broken(lib.Producer):
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not today")

    grid, _ = lib.small(lib.CPU, Broken)
    with lib.raising(goflat.DTypeError, "key '0', batch 0", "not today"):
        goflat.flatten(lib.features(grid))
    assert set(lib.fakearray.deleted()) <= {1}


@in_child()
def test_memory_of_a_device_is_refused() -> None:
    """No stream is agreed on; and it is said before anything is exported."""
    for options in GOOD.values():
        grid, _ = lib.small(lib.CUDA1, lib.producer(**options))
        lib.reset()
        with lib.raising(goflat.DeviceError, "memory of the CPU"):
            goflat.flatten(lib.features(grid))
        assert lib.log() == []
        assert lib.fakearray.deleted() == []
