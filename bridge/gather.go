package bridge

// #include "job.h"
import "C"

import (
	"errors"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// gather moves the bytes on CUDA devices: one call per device, on the stream that is the framework's current one there.
// The copies may still run when it returns; the framework's allocator orders what follows, as for its own operations.
func (j *job) gather() error {
	j.addresses()
	for b, device := range j.layout.Devices {
		if seen(j.layout.Devices[:b], device) {
			continue
		}
		if err := j.gatherOn(device); err != nil {
			return err
		}
	}
	return nil
}

// gatherOn launches without the GIL: where the launch queue is full, a launch waits for the stream, and the stream may
// wait for a host function in Python.
func (j *job) gatherOn(device flatten.Device) error {
	var stream C.uint64_t
	if _, err := j.result(C.gf_current_stream(j.c, C.int32_t(device.Index), &stream)); err != nil {
		return err
	}
	C.gf_pause(j.c)
	defer C.gf_resume(j.c)
	if j.casting {
		return deviceError(gpu.Cast(int(device.Index), uintptr(stream), j.cast(), j.dstAddr, j.srcAddr))
	}
	return deviceError(gpu.Gather(int(device.Index), uintptr(stream), &j.plan, j.dstAddr, j.srcAddr))
}

func seen(devices []flatten.Device, device flatten.Device) bool {
	for _, d := range devices {
		if d == device {
			return true
		}
	}
	return false
}

// deviceError puts a failure of the driver into the words of the bridge.
func deviceError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, gpu.ErrMisaligned) {
		return err
	}
	var unavailable *gpu.UnavailableError
	if errors.As(err, &unavailable) {
		return &wireError{"DEVICE", -1, -1, "CUDA tensors where " + unavailable.Why, unavailable.Advice}
	}
	return &wireError{"DEVICE", -1, -1, err.Error(), "a launch without errors"}
}

// Driver says why CUDA cannot be used in this process; empty if it can. It opens the driver.
func Driver() string {
	if err := gpu.Available(); err != nil {
		return err.Error()
	}
	return ""
}
