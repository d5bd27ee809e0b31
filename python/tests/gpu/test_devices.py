"""More than one GPU, and GPUs that are not the current one."""

from __future__ import annotations

import pytest
import torch

import goflat
from gpu.support import bits, check, check_bits, job, need_devices, oracle, refill, run, sleep

pytestmark = pytest.mark.usefixtures("cuda", "two")


@pytest.fixture
def two(cuda: None) -> None:
    need_devices(2)
    torch.cuda.set_device(0)


@pytest.mark.parametrize("packed", [False, True])
def test_all_on_cuda_1_while_cuda_0_is_current(packed: bool) -> None:
    features = job(device="cuda:1")
    flat = goflat.flatten(features, packed=packed)
    assert torch.cuda.current_device() == 0
    check(features, flat)
    assert {str(out.device) for out in flat} == {"cuda:1"}
    torch.cuda.synchronize(1)


def cold() -> None:
    """Run in a child: the first job of the process is on cuda:1, and cuda:0 is never touched."""
    features = job(device="cuda:1")
    check(features, goflat.flatten(features))
    assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_reserved(0) == 0


def test_cold_on_cuda_1() -> None:
    run("from gpu.test_devices import cold; cold()")


def test_errors_leave_the_current_device_alone() -> None:
    features = job(device="cuda:1")
    features["1"][1] = bits((2, 4), device="cuda:1")
    with pytest.raises(goflat.ShapeError):
        goflat.flatten(features)
    assert torch.cuda.current_device() == 0
    features["1"][1] = bits((4, 3), device="cuda:0")
    for options in ({}, {"packed": True}):
        with pytest.raises(goflat.DeviceError, match="key '1', batch 1: got cuda:0, want cuda:1"):
            goflat.flatten(features, **options)
    assert torch.cuda.current_device() == 0


def test_batches_on_two_devices() -> None:
    here, there = job(), job(device="cuda:1")
    features = {key: [here[key][0], there[key][1]] for key in here}
    flat = goflat.flatten(features)
    check(features, flat)
    assert [str(device) for device in flat.layout.devices] == ["cuda:0", "cuda:1"]
    with pytest.raises(goflat.DeviceError):
        goflat.flatten(features, packed=True)
    outs = [bits((5, 3), device="cuda:0"), bits((7, 3), device="cuda:1")]
    goflat.flatten(features, out=outs)
    check_bits(outs, oracle(features))
    with pytest.raises(goflat.DeviceError, match="batch 0: got out on cuda:1, want cuda:0"):
        goflat.flatten(features, out=[bits((5, 3), device="cuda:1"), outs[1]])
    assert torch.cuda.current_device() == 0


def test_each_device_has_its_current_stream() -> None:
    here, there = job(), job(device="cuda:1")
    features = {key: [here[key][0], there[key][1]] for key in here}
    goflat.flatten(features)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    streams = torch.cuda.Stream(0), torch.cuda.Stream(1)
    for device, stream in enumerate(streams):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            sleep(50)
            refill({key: [line[device]] for key, line in features.items()})
    with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
        flat = goflat.flatten(features)
    for stream in streams:
        stream.synchronize()
    check(features, flat)


def test_the_current_device_may_be_the_other_one() -> None:
    features = job(device="cuda:0")
    with torch.cuda.device(1):
        check(features, goflat.flatten(features))
        assert torch.cuda.current_device() == 1


def test_consuming_on_two_devices_waits_for_streams_of_both() -> None:
    sides = [torch.cuda.Stream(device) for device in range(2)]
    features = {key: [t.to(b) for b, t in enumerate(line)] for key, line in job().items()}
    want, copies = oracle(features), []
    for device, side in enumerate(sides):
        torch.cuda.synchronize(device)
        with torch.cuda.device(device), torch.cuda.stream(side):
            sleep(50)
            copies.append([line[device].clone() for line in features.values()])
    before = [[line[b].clone() for line in features.values()] for b in range(2)]
    flat = goflat.flatten_(features, max_growth=1 << 20, wait=sides)
    for device in range(2):
        torch.cuda.synchronize(device)
        check_bits(copies[device], before[device])
    check_bits(flat, want)
    assert torch.cuda.current_device() == 0
