package main

import (
	"errors"
	"runtime"

	"gorgonia.org/cu"
	"gorgonia.org/tensor"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// A Device is a context and a stream of gorgonia.org/cu, with goflat's kernels in it. It is
// the engine of the tensors that it makes: their memory is the device's.
type Device struct {
	ordinal int
	context cu.CUContext
	stream  cu.Stream
	goflat  *gpu.Context
}

// NewDevice makes a context, which is not the primary one, and a stream.
func NewDevice(ordinal int) (*Device, error) {
	if err := gpu.Available(); err != nil { // before the first call of package cu
		return nil, err
	}
	runtime.LockOSThread() // MakeContext makes the context current on this thread
	defer runtime.UnlockOSThread()
	context, err := cu.Device(ordinal).MakeContext(cu.SchedAuto)
	if err != nil {
		return nil, err
	}
	d := &Device{ordinal: ordinal, context: context}
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err == nil {
		_, err = cu.PopCurrentCtx()
	}
	if err == nil {
		d.goflat, err = gpu.NewContext(context)
	}
	if err != nil {
		return nil, errors.Join(err, d.context.Destroy())
	}
	return d, nil
}

// Close destroys the context, and with it the memory of all tensors on the device.
func (d *Device) Close() error {
	d.goflat.Close()
	return d.context.Destroy()
}

// Flatten is Flatten for tensors on the device. It waits until the results are there.
func (d *Device) Flatten(features [][]*tensor.Dense) ([]*tensor.Dense, error) {
	all, plan, err := planFor(features, flatten.Device{Type: flatten.DeviceCUDA, Index: int32(d.ordinal)})
	if err != nil {
		return nil, err
	}
	src := make([]cu.DevicePtr, len(all))
	for e, t := range all {
		src[e] = cu.DevicePtr(t.Uintptr())
	}
	flat := make([]*tensor.Dense, plan.Layout.Batches)
	dst := make([]cu.DevicePtr, len(flat))
	for b := range flat {
		flat[b] = d.empty(all[0].Dtype(), ints(plan.Layout.OutShape(b)))
		dst[b] = cu.DevicePtr(flat[b].Uintptr())
	}
	if err := d.goflat.Gather(d.stream, plan, dst, src); err != nil {
		return nil, err
	}
	return flat, d.within(d.stream.Synchronize)
}

// empty is a new tensor on the device.
func (d *Device) empty(of tensor.Dtype, shape []int) *tensor.Dense {
	return tensor.New(tensor.Of(of), tensor.WithShape(shape...), tensor.WithEngine(d))
}

// Upload copies a row-major tensor to the device.
func (d *Device) Upload(t *tensor.Dense) (*tensor.Dense, error) {
	there := d.empty(t.Dtype(), t.Shape())
	return there, d.within(func() error {
		if err := cu.MemcpyHtoD(cu.DevicePtr(there.Uintptr()), pointer(t), int64(t.MemSize())); err != nil {
			return err
		}
		return cu.Synchronize() // the stream does not wait for this copy
	})
}

// Download copies a tensor of the device.
func (d *Device) Download(t *tensor.Dense) (*tensor.Dense, error) {
	here := tensor.New(tensor.Of(t.Dtype()), tensor.WithShape(t.Shape()...))
	return here, d.within(func() error {
		return cu.MemcpyDtoH(pointer(here), cu.DevicePtr(t.Uintptr()), int64(t.MemSize()))
	})
}

// within calls f with the context current on the thread.
func (d *Device) within(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(d.context); err != nil {
		return err
	}
	err := f()
	_, failed := cu.PopCurrentCtx()
	return errors.Join(err, failed)
}

// What follows makes a Device a tensor.Engine.

// AllocAccessible says that Go cannot reach the memory.
func (d *Device) AllocAccessible() bool { return false }

// Alloc allocates memory of the device.
func (d *Device) Alloc(bytes int64) (memory tensor.Memory, err error) {
	err = d.within(func() error {
		at, err := cu.MemAlloc(bytes)
		memory = at
		return err
	})
	return memory, err
}

// Free frees memory of Alloc.
func (d *Device) Free(memory tensor.Memory, _ int64) error {
	return d.within(func() error { return cu.MemFree(cu.DevicePtr(memory.Uintptr())) })
}

// Memcpy copies on the device.
func (d *Device) Memcpy(dst, src tensor.Memory) error {
	return d.within(func() error {
		return cu.MemcpyDtoD(cu.DevicePtr(dst.Uintptr()), cu.DevicePtr(src.Uintptr()), int64(src.MemSize()))
	})
}

// errDevice is the answer to what this example does not need.
var errDevice = errors.New("not on this device")

// Memset is not needed.
func (d *Device) Memset(tensor.Memory, any) error { return errDevice }

// Memclr is not needed: the memory is written before it is read.
func (d *Device) Memclr(tensor.Memory) {}

// Accessible says that Go cannot reach the memory.
func (d *Device) Accessible(memory tensor.Memory) (tensor.Memory, error) { return memory, errDevice }

// WorksWith says that rows and columns may come first.
func (d *Device) WorksWith(tensor.DataOrder) bool { return true }

var _ tensor.Engine = (*Device)(nil)
