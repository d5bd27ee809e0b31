package bridge

// #include "job.h"
import "C"

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// A bound job is one that can be run again: where its entries and outputs lie, and what moves the bytes. Python keeps
// the memory alive.
type bound struct {
	plan     *flatten.Plan
	dst, src [][]byte                         // on the CPU
	launches map[flatten.Device]*gpu.Prepared // on CUDA devices
}

var bounds struct {
	sync.RWMutex
	last int64
	all  map[int64]*bound
}

// Bind reads a job as Flatten does, with the outputs of the list at address outs, and remembers how to run it. scratch is
// the address of a list that stays empty, like that of a tensor of the dtype to convert to or 0. It returns a handle for RunBound, which FreeBound ends, or 0 where only the
// framework does the job right.
func Bind(features, outs, scratch, dim, flags, like int64) (handle int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	j, err := open(features, scratch, dim, flags, like)
	if err != nil {
		return 0, wire(err)
	}
	b, err := j.bind(outs, dim)
	if b == nil || err != nil {
		j.abandon()
		return 0, wire(err)
	}
	C.gf_close(j.c, 0, 0, nil) // and j is not used again: the plan lies in its memory
	bounds.Lock()
	defer bounds.Unlock()
	if bounds.all == nil {
		bounds.all = map[int64]*bound{}
	}
	bounds.last++
	bounds.all[bounds.last] = b
	return bounds.last, nil
}

// bind prepares the job; nil where it cannot be.
func (j *job) bind(outs, dim int64) (*bound, error) {
	if status, err := j.result(C.int(j.c.status)); status != C.GF_DONE || err != nil || j.c.entries == 0 {
		return nil, err
	}
	if status, err := j.describe(int(dim)); status != C.GF_DONE || err != nil {
		return nil, err
	}
	j.layout.Rows = slices.Clone(j.layout.Rows) // the collector's table ends with the call
	if j.mover() == nil {
		return nil, nil
	}
	if j.c.flags&C.GF_FLAG_PACKED != 0 {
		if j.layout.Legacy != nil {
			return nil, nil
		}
		if err := j.pack(); err != nil {
			return nil, j.unpacked(err)
		}
	}
	if status, err := j.takeOutputs(outs); status != C.GF_DONE || err != nil {
		return nil, j.unpacked(err)
	}
	b := &bound{plan: &j.plan}
	if j.layout.Devices[0].Type == flatten.DeviceCPU {
		j.slices()
		b.dst, b.src = j.dst, j.src
		return b, nil
	}
	j.addresses()
	b.launches = map[flatten.Device]*gpu.Prepared{}
	for _, d := range j.layout.Devices {
		if b.launches[d] != nil {
			continue
		}
		p, err := j.prepare(int(d.Index))
		if errors.Is(err, gpu.ErrMisaligned) {
			return nil, nil
		}
		if err != nil {
			return nil, deviceError(err)
		}
		b.launches[d] = p
	}
	return b, nil
}

// prepare makes the launches on a device.
func (j *job) prepare(device int) (*gpu.Prepared, error) {
	if j.casting {
		return gpu.PrepareCast(device, j.cast(), j.dstAddr, j.srcAddr)
	}
	return gpu.Prepare(device, &j.plan, j.dstAddr, j.srcAddr)
}

// RunBound moves the bytes of a bound job: on the CPU if device is -1, else those of a CUDA device, on a stream there.
// It returns 1, or 0 if there is no such job. The GIL is not held.
func RunBound(handle, device, stream int64) (done int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	bounds.RLock()
	b := bounds.all[handle]
	bounds.RUnlock()
	if b == nil {
		return 0, nil
	}
	if device < 0 {
		b.plan.Execute(b.dst, b.src, 0)
		return 1, nil
	}
	p := b.launches[flatten.Device{Type: flatten.DeviceCUDA, Index: int32(device)}]
	if p == nil {
		return 0, nil
	}
	return 1, wire(deviceError(p.Launch(uintptr(stream))))
}

// FreeBound ends a bound job. It returns 1 if there was one.
func FreeBound(handle int64) int64 {
	bounds.Lock()
	defer bounds.Unlock()
	if _, found := bounds.all[handle]; !found {
		return 0
	}
	delete(bounds.all, handle)
	return 1
}

// LiveBound is the number of bound jobs that have not been freed.
func LiveBound() int64 {
	bounds.RLock()
	defer bounds.RUnlock()
	return int64(len(bounds.all))
}
