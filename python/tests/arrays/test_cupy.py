"""What is asked of CuPy, where there is none: a stand-in with the classes that matter."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import goflat
from goflat._streams import streams_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

happened: list[Any] = []  # since the test began


class Device:
    """CuPy's compare and do not hash."""

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, number: int) -> None:
        self.id = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __str__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> None:
        happened.append(("enter", self.id))

    def __exit__(self, *_: object) -> None:
        happened.append(("exit", self.id))


class Stream:
    """A stream that notes what it waits for: handle of another one, and where its event is."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr, self.device_id = ptr, device_id

    def wait_event(self, event: Event) -> None:
        happened.append((self.ptr, event.on))


class Event:
    """An event that knows where it was made and what it was recorded on."""

    def __init__(self, *, disable_timing: bool) -> None:
        assert disable_timing
        self.ptr = self
        self.home = next(number for what, number in reversed(happened) if what == "enter")
        self.on = (0, 0)


def record(event: Event, handle: int) -> None:
    event.on = handle, event.home


class Foreign:
    """A stream of a library that speaks no more than the protocol."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "cupy" in sys.modules:
        pytest.skip("CuPy itself is there")
    cuda = SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=Stream,
        ExternalStream=Stream,
        runtime=SimpleNamespace(eventRecord=record),
        get_current_stream=lambda number: Stream(100 + number, number),
    )
    stand_in = SimpleNamespace(ndarray=type("ndarray", (), {}), cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    happened.clear()
    yield
    sys.modules.pop("goflat._cupy", None)  # which refers to the stand-in
    vars(goflat).pop("_cupy", None)


def layout(*numbers: int) -> goflat.Layout:
    devices, size = tuple(map(Device, numbers)), len(numbers)
    return goflat.Layout(("a",), size, {"a": (1,) * size}, (), np.dtype("f4"), devices, 0)


def test_devices_need_not_hash() -> None:
    assert "on <CUDA Device 0>, <CUDA Device 1>, dim=0" in repr(layout(0, 1, 0))
    assert "on <CUDA Device 0>, <CUDA Device 1>" in str(goflat.plan(layout(0, 1, 0)))


def test_each_device_waits_for_each_stream() -> None:
    wait_for(layout(1, 0, 1), streams_of([Stream(5, 1), Stream(2)]))
    waits = [event for event in happened if event[0] not in ("enter", "exit")]
    assert waits == [(101, (5, 1)), (101, (2, 1)), (100, (5, 1)), (100, (2, 0))]


def test_events_are_made_on_the_device_of_the_stream() -> None:
    wait_for(layout(1, 1), [Stream(5, 0)])
    assert happened == [("enter", 0), ("exit", 0), ("enter", 1), (101, (5, 0)), ("exit", 1)]


def test_a_handle_alone_belongs_to_the_only_device() -> None:
    wait_for(layout(1, 1), [Foreign()])
    assert (101, (7, 1)) in happened
    with pytest.raises(goflat.DeviceError, match="Foreign without a device, for a job on several"):
        wait_for(layout(0, 1), [Foreign()])
