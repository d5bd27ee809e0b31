"""Every dialect of the exchange API, and what its tensors live through."""

from __future__ import annotations

import builtins
import ctypes

import numpy as np

import goflat
from fake.child import in_child, lib


@in_child(kind=["Exchange", "Int", "Newer", "Owned"])
def test_dialects(kind: str) -> None:
    cls = getattr(lib, kind)
    lib.fakearray.set_results(cls)
    lib.works(lib.CUDA1)
    clean = lib.alive()
    for device in lib.CUDA1, lib.CPU:
        grid, want = lib.small(device, cls)
        before = lib.fakearray.counts()
        flat = goflat.flatten(lib.features(grid))
        after = lib.fakearray.counts()
        lib.assert_right(flat, want)
        assert {type(out) for out in flat} == {cls}
        lent, owned = (0, 8) if kind == "Owned" else (8, 0)  # 6 entries, 2 outputs
        calls = {"allocate": 2, "object": 2, "owned": owned, "borrow": lent}
        assert {name: after[name] - before[name] for name in calls} == calls
        assert lib.fakearray.deleted().count(0) == 2  # all that is still out is the outputs' memory
        del flat, grid
        assert lib.alive() == clean
    lib.check_deleters()


@in_child()
def test_subclasses_speak_as_their_base_does() -> None:
    class Special(lib.Exchange):
        pass

    grid, want = lib.small(cls=Special)
    lib.assert_right(goflat.flatten(lib.features(grid)), want)


@in_child()
def test_entries_of_two_types() -> None:
    grid, _ = lib.small(cls=lib.Exchange)
    other, _ = lib.small(cls=lib.Int)
    lib.reset()
    with lib.raising(goflat.DTypeError):
        goflat.flatten(lib.features([grid[0], other[1]]))
    assert lib.log() == []


@in_child()
def test_a_table_of_a_later_generation_is_not_touched() -> None:
    """Without ``__dlpack__`` there is no other way in; with it, that is the way."""
    cycle = type("Cycle", (lib.fakearray.Array,), {"__c_dlpack_exchange_api__": cyclic()})
    for cls in lib.Future, cycle:
        for device in (lib.CUDA1, lib.CPU):
            grid, _ = lib.small(device, cls)
            clean = lib.alive()
            with lib.raising(goflat.DTypeError):
                goflat.flatten(lib.features(grid))
            assert lib.alive() == clean

    class Both(lib.Future, lib.Producer):
        pass

    grid, want = lib.small(lib.CPU, Both)
    flat = goflat.flatten(lib.features(grid))
    assert [out.tolist() for out in flat] == [x.tolist() for x in want]
    grid, _ = lib.small(lib.CUDA1, Both)
    with lib.raising(goflat.DeviceError, "memory of the CPU"):
        goflat.flatten(lib.features(grid))


def cyclic() -> int:
    """Return a table of generation 2 whose older table is itself."""
    table = int(lib.fakearray.exchange(2, 0))
    ctypes.c_uint64.from_address(table + 8).value = table
    return table


@in_child()
def test_an_attribute_that_is_no_table() -> None:
    for name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"):
        for value in (None, 0, "text", 3.5):
            grid, _ = lib.small(lib.CUDA1, type("Odd", (lib.fakearray.Array,), {name: value}))
            with lib.raising(goflat.DTypeError):
                goflat.flatten(lib.features(grid))


@in_child()
def test_layouts() -> None:
    """What the library calls dtype and device, or nothing where it has no such words."""

    class Bare(lib.Exchange):
        @property
        def dtype(self) -> None:
            raise AttributeError("dtype")

        @property
        def device(self) -> None:
            raise AttributeError("device")

    for cls, dtype, devices in (
        (lib.Exchange, "dtype 2:32", ("device 2:1", "device 2:0")),
        (Bare, None, (None, None)),
    ):
        lib.fakearray.set_results(cls)
        there, _ = lib.small(cls=cls)
        here, _ = lib.small(lib.CUDA0, cls)
        grid = [[a[0], b[1]] for a, b in zip(there, here, strict=True)]
        layout = goflat.flatten(lib.features(grid)).layout
        assert (layout.dtype, layout.devices) == (dtype, devices)
        assert layout.rows == {"0": (2, 1), "1": (0, 4), "2": (3, 2)}
        assert layout.row_shape == (3,)


@in_child()
def test_packed_is_for_libraries_that_can_cut() -> None:
    grid, _ = lib.small()
    lib.reset()
    with lib.raising(goflat.Error):
        goflat.flatten(lib.features(grid), packed=True)
    assert lib.log() == []


@in_child()
def test_outputs_outlive_the_entries_and_each_other() -> None:
    clean = lib.alive()
    grid, want = lib.small()
    flat = list(goflat.flatten(lib.features(grid)))
    del grid
    lib.assert_right(flat, want)
    again = goflat.flatten({"a": [flat[0]], "b": [flat[0]]})
    del flat[0]
    lib.assert_right(flat, want[1:])
    lib.assert_right(again, [np.concatenate([want[0], want[0]])])
    del flat, again
    assert {**lib.alive(), "contexts": 0, "modules": 0} == clean
    lib.check_deleters()


@in_child()
def test_outputs_live_until_the_interpreter_exits() -> None:
    grid, _ = lib.small(cls=lib.Owned)
    builtins.kept = goflat.flatten(lib.features(grid)), grid  # type: ignore[attr-defined]


@in_child()
def test_other_devices_are_refused() -> None:
    """ROCm, say: nobody here can copy its memory."""
    grid, _ = lib.small((10, 0))
    lib.reset()
    with lib.raising(goflat.Error):
        goflat.flatten(lib.features(grid))
    assert lib.log() == []
