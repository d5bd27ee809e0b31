package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/kernels"
)

// ErrMisaligned says that an element to convert does not lie at a multiple of its size. Copy it first.
var ErrMisaligned = errors.New("misaligned elements")

// Cast converts the elements of a plan's batches that live on one CUDA device, as
// [flatten.ApplyCast] would, in one launch for each type of its entries if the job is ordinary.
// Everything else is as for [Gather], and an element that is not aligned is [ErrMisaligned] before
// anything is launched.
//
// The first cast between two types on a device loads its kernels, which the driver compiles if it
// has not kept them.
func Cast(device int, stream uintptr, cast *flatten.Cast, dst, src []uintptr) error {
	if len(cast.Plan.Segments) == 0 {
		return nil
	}
	if err := checkCast(cast, dst, src); err != nil {
		return err
	}
	on, err := useCasters(device, cast)
	if err != nil {
		return err
	}
	c := takeCastCall(on, stream)
	defer c.putBack()
	c.job = castJob(on.loaded, device, cast, dst, src)
	return c.run()
}

// PrepareCast is [Prepare] for [Cast].
func PrepareCast(device int, cast *flatten.Cast, dst, src []uintptr) (*Prepared, error) {
	if err := checkCast(cast, dst, src); err != nil {
		return nil, err
	}
	on, err := useCasters(device, cast)
	if err != nil {
		return nil, err
	}
	p := &Prepared{on: on.loaded}
	c := takeCastCall(on, 0)
	defer c.putBack()
	c.job = castJob(on.loaded, device, cast, dst, src)
	err = c.tables.Run(&c.job, func(l *launch.CastLaunch) error {
		own := on.start(l)
		own.table = slices.Clone(own.table)
		p.starts = append(p.starts, own)
		return nil
	})
	return p, err
}

func castJob(on *loaded, device int, cast *flatten.Cast, dst, src []uintptr) launch.CastJob {
	return launch.CastJob{
		Cast: cast, Dst: dst, Src: src,
		Device:          flatten.Device{Type: flatten.DeviceCUDA, Index: int32(device)},
		Multiprocessors: on.multiprocessors,
	}
}

// checkCast refuses what kernels would trap on.
func checkCast(cast *flatten.Cast, dst, src []uintptr) error {
	l := cast.Plan.Layout
	if len(dst) != l.Batches || len(src) != len(l.Rows) || len(cast.From) != len(l.Rows) {
		return fmt.Errorf("cast: got %d output and %d entry addresses and %d types, want %d, %d and %d",
			len(dst), len(src), len(cast.From), l.Batches, len(l.Rows), len(l.Rows))
	}
	var low uintptr
	for _, at := range dst {
		low |= at & uintptr(cast.To.Bytes()-1)
	}
	for e, at := range src {
		low |= at & uintptr(cast.From[e].Bytes()-1)
	}
	if low != 0 {
		return ErrMisaligned
	}
	return nil
}

// A caster is the kernels of casts between two types, loaded on one device to the end of the
// process. It does not change.
type caster struct {
	on        *loaded
	module    cu.Module
	functions [2]uintptr // CUfunction, the one with the large table last
}

// casting is a device ready for a cast.
type casting struct {
	*loaded
	device *device
}

// useCasters returns a device ready for a cast; the first one of its types loads them.
func useCasters(ordinal int, cast *flatten.Cast) (casting, error) {
	d, err := find(ordinal)
	if err != nil {
		return casting{}, err
	}
	on, err := d.use()
	if err != nil {
		return casting{}, err
	}
	for _, from := range cast.From {
		if d.casters[from][cast.To].Load() != nil {
			continue
		}
		if err := d.loadCaster(on, from, cast.To); err != nil {
			return casting{}, fmt.Errorf("load kernels from %v to %v on device %d: %w", from, cast.To, ordinal, err)
		}
	}
	return casting{on, d}, nil
}

// loadCaster loads the kernels between two types, unless somebody else has by now.
func (d *device) loadCaster(on *loaded, from, to flatten.Float) error {
	d.loading.Lock()
	defer d.loading.Unlock()
	if d.casters[from][to].Load() != nil {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return relaxed(func() error {
		c, err := loadCaster(on, from, to)
		if err == nil {
			d.casters[from][to].Store(c)
		}
		return err
	})
}

// loadCaster loads the kernels, or leaves nothing behind.
func loadCaster(on *loaded, from, to flatten.Float) (*caster, error) {
	s, err := enter(on.context)
	if err != nil {
		return nil, err
	}
	c := &caster{on: on}
	if c.module, err = cu.LoadData(kernels.Cast(from, to)); err != nil {
		return nil, s.leave(failure("cuModuleLoadData", err))
	}
	if err := s.leave(c.findFunctions(from, to)); err != nil {
		c.unload()
		return nil, err
	}
	return c, nil
}

func (c *caster) findFunctions(from, to flatten.Float) (err error) {
	for i := range c.functions {
		k := launch.CastKernel{From: from, To: to, Large: i == 1}
		if c.functions[i], err = kernelOf(c.module, k.String(), launch.CastThreads); err != nil {
			return err
		}
	}
	return nil
}

// unload gives back what the caster has. It reports nothing, see permuter.unload.
func (c *caster) unload() {
	if s, err := enter(c.on.context); err == nil {
		_ = c.module.Unload()
		_ = s.leave(nil)
	}
}

// start is what enqueues a launch.
func (on casting) start(l *launch.CastLaunch) start {
	c := on.device.casters[l.Kernel.From][l.Kernel.To].Load()
	s := start{function: c.functions[0], blocks: l.Blocks, threads: launch.CastThreads, table: l.Table}
	if l.Kernel.Large {
		s.function = c.functions[1]
	}
	return s
}

// A castCall is the memory of one call of Cast, used again by later ones.
type castCall struct {
	tables launch.Cast
	job    launch.CastJob
	on     casting
	stream uintptr
	launch func(*launch.CastLaunch) error // c.enqueue, made once
	next   *castCall                      // in the list of idle ones
}

// run enqueues the job's launches with the device's context current.
func (c *castCall) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(c.on.context)
	if err != nil {
		return err
	}
	return s.leave(c.tables.Run(&c.job, c.launch))
}

func (c *castCall) enqueue(l *launch.CastLaunch) error {
	s := c.on.start(l)
	if err := s.enqueue(c.stream); err != nil {
		return fmt.Errorf("launch %v (%d blocks): %w", l.Kernel, l.Blocks, err)
	}
	return nil
}

// idleCasts are the calls of Cast that nobody makes now, see idle.
var idleCasts struct {
	sync.Mutex
	first *castCall
}

func takeCastCall(on casting, stream uintptr) *castCall {
	idleCasts.Lock()
	c := idleCasts.first
	if c != nil {
		idleCasts.first = c.next
	}
	idleCasts.Unlock()
	if c == nil {
		c = new(castCall)
		c.launch = c.enqueue
	}
	c.on, c.stream = on, stream
	return c
}

func (c *castCall) putBack() {
	c.job, c.on = launch.CastJob{}, casting{} // hold nothing of the caller's
	idleCasts.Lock()
	defer idleCasts.Unlock()
	c.next, idleCasts.first = idleCasts.first, c
}
