//go:build cgo

package main

import (
	"errors"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/dlpack"
	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// joinOnDevice enqueues the join on a stream of the device's primary context, where PyTorch
// works, and lends memory of the driver.
func joinOnDevice(out flatten.Entry, plan *flatten.Plan, tensors []*dlpack.Tensor, stream uintptr) (unsafe.Pointer, error) {
	if err := gpu.Available(); err != nil {
		return nil, err
	}
	ordinal := int(out.Device.Index)
	memory, err := allocate(ordinal, plan.Layout.BatchBytes(0))
	if err != nil {
		return nil, err
	}
	src := make([]uintptr, len(tensors))
	for i, t := range tensors {
		src[i] = t.Low()
	}
	err = gpu.Gather(ordinal, stream, plan, []uintptr{uintptr(memory)}, src)
	var managed unsafe.Pointer
	if err == nil {
		managed, err = dlpack.Export(out, uintptr(memory), dlpack.Options{
			Unversioned: true,
			Release:     func() { _ = free(ordinal, memory) }, // waits for work that uses it
		})
	}
	if err != nil {
		return nil, errors.Join(err, free(ordinal, memory))
	}
	return managed, nil
}

// allocate returns memory of a device, and keeps its primary context until free.
func allocate(ordinal int, bytes int64) (memory cu.DevicePtr, err error) {
	context, err := cu.Device(ordinal).RetainPrimaryCtx()
	if err != nil {
		return 0, err
	}
	err = within(context, func() error {
		memory, err = cu.MemAlloc(max(bytes, 1))
		return err
	})
	return memory, err
}

func free(ordinal int, memory cu.DevicePtr) error {
	device := cu.Device(ordinal)
	context, err := device.RetainPrimaryCtx()
	if err != nil {
		return err
	}
	err = within(context, func() error { return cu.MemFree(memory) })
	return errors.Join(err, device.ReleasePrimaryCtx(), device.ReleasePrimaryCtx()) // that of allocate, too
}

// within calls f with a context current on the thread.
func within(context cu.CUContext, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(context); err != nil {
		return err
	}
	err := f()
	_, failed := cu.PopCurrentCtx()
	return errors.Join(err, failed)
}
