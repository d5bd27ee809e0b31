package gpu_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
)

// An owner is a context and a stream as a user of gorgonia.org/cu has them: not the
// primary one.
type owner struct {
	device  int
	context cu.CUContext
	stream  cu.Stream
	run     *gpu.Context
}

// newOwner makes a context, which no thread has as its current one afterwards.
func newOwner(t testing.TB, device int) *owner {
	t.Helper()
	if device >= numDevices(t) {
		t.Skipf("needs %d devices", device+1)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := &bench{t: t, device: device}
	o := &owner{device: device}
	var err error
	o.context, err = cu.Device(device).MakeContext(cu.SchedAuto)
	b.must(err)
	o.stream, err = cu.MakeStream(cu.NonBlocking)
	b.must(err)
	_, err = cu.PopCurrentCtx()
	b.must(err)
	o.run, err = gpu.NewContext(o.context)
	b.must(err)
	t.Cleanup(func() {
		o.run.Close()
		b.must(o.context.Destroy())
	})
	return o
}

// bench makes the context current on the test's thread until the test ends.
func (o *owner) bench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, device: o.device, stream: gpu.StreamHandle(o.stream)}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b.must(cu.PushCurrentCtx(o.context))
	t.Cleanup(func() {
		_, err := cu.PopCurrentCtx()
		b.must(err)
	})
	return b
}

// runOwn returns a runner that works in a context of the caller's.
func runOwn(o *owner, gather func(plan *flatten.Plan, dst, src []cu.DevicePtr) error) runner {
	return func(t *testing.T, k *task) {
		t.Helper()
		b := o.bench(t)
		dst, src := b.placeAll(k.dst), b.placeAll(k.src)
		b.must(gather(k.plan, pointers(payloads(k.dst, dst)), pointers(payloads(k.src, src))))
		b.must(o.stream.Synchronize())
		b.readAll(k.dst, dst)
		b.readAll(k.src, src)
	}
}

func pointers(addresses []uintptr) []cu.DevicePtr {
	list := make([]cu.DevicePtr, len(addresses))
	for i, a := range addresses {
		list[i] = cu.DevicePtr(a)
	}
	return list
}

func TestConformanceContext(t *testing.T) {
	for device := range numDevices(t) {
		t.Run(fmt.Sprintf("device %d", device), func(t *testing.T) {
			o := newOwner(t, device)
			conform(t, runOwn(o, func(plan *flatten.Plan, dst, src []cu.DevicePtr) error {
				return o.run.Gather(o.stream, plan, dst, src)
			}), 10_000)
		})
	}
}

func TestContextMoves(t *testing.T) {
	o := newOwner(t, 0)
	conform(t, runOwn(o, func(plan *flatten.Plan, dst, src []cu.DevicePtr) error {
		return o.run.Moves(o.stream, moves(plan, dst, src))
	}), 10_000)
}

// moves is a plan with addresses put in.
func moves(plan *flatten.Plan, dst, src []cu.DevicePtr) []flatten.Move {
	var all []flatten.Move
	for _, s := range plan.Segments {
		all = append(all, flatten.Move{
			Dst:   flatten.Addr{Base: flatten.Absolute, Off: uint64(dst[s.Batch]) + uint64(s.Dst)},
			Src:   flatten.Addr{Base: flatten.Absolute, Off: uint64(src[s.Entry]) + uint64(s.Src)},
			Bytes: s.Bytes, Axes: s.Axes,
		})
	}
	return all
}

func TestContextPrepared(t *testing.T) {
	o := newOwner(t, 0)
	conform(t, runOwn(o, func(plan *flatten.Plan, dst, src []cu.DevicePtr) error {
		p, err := o.run.Prepare(plan, dst, src)
		if err != nil {
			return err
		}
		return p.Launch(gpu.StreamHandle(o.stream))
	}), 10_000)
}

func TestContextPermute(t *testing.T) {
	for device := range numDevices(t) {
		t.Run(fmt.Sprintf("device %d", device), func(t *testing.T) {
			o := newOwner(t, device)
			b := o.bench(t)
			const unit, units = 1040, 3000
			rows := make([]byte, unit*units)
			for i := range rows {
				rows[i] = byte(i / unit * 7)
			}
			at := b.alloc(rows)
			p := &flatten.Permutation{Origin: uint64(at), Unit: unit, Grain: unit, Ends: []int32{units}, Closed: []bool{true}}
			for i := range units {
				p.Pos = append(p.Pos, uint32(i))
			}
			b.must(o.run.Permute(o.stream, p))
			b.must(o.stream.Synchronize())
			got := make([]byte, len(rows))
			b.read(got, at)
			want := append(slices.Clone(rows[unit:]), rows[:unit]...)
			if i := firstDifference(got, want); i >= 0 {
				t.Errorf("byte %d: got %#x, want %#x", i, got[i], want[i])
			}
		})
	}
}

// Threads with other contexts, and with none, keep them; calls may run at once.
func TestContextFromAnyThread(t *testing.T) {
	o := newOwner(t, 0)
	b := o.bench(t)
	src := b.alloc([]byte("goflat"))
	plan := new(flatten.Plan)
	b.must(plan.BuildPlain(&flatten.Layout{
		NumKeys: 1, Batches: 1, Rows: []int64{6}, DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}))
	var threads sync.WaitGroup
	for range 8 {
		dst := b.alloc(make([]byte, 6))
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := current(t)
			for range 50 {
				if err := o.run.Gather(o.stream, plan, []cu.DevicePtr{cu.DevicePtr(dst)}, []cu.DevicePtr{cu.DevicePtr(src)}); err != nil {
					t.Error(err)
					return
				}
			}
			if after := current(t); after != before {
				t.Errorf("got context %s, want %s", after, before)
			}
		})
		t.Cleanup(func() {
			got := make([]byte, 6)
			b.must(o.stream.Synchronize())
			b.read(got, dst)
			if string(got) != "goflat" {
				t.Errorf("got %q", got)
			}
		})
	}
	threads.Wait()
}

func TestContextRefuses(t *testing.T) {
	o := newOwner(t, 0)
	plan := new(flatten.Plan)
	l := &flatten.Layout{NumKeys: 1, Batches: 1, Rows: []int64{6}, DType: flatten.DType{Bits: 8, Lanes: 1}}
	if err := plan.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	one := make([]cu.DevicePtr, 1)
	_, none := gpu.NewContext(cu.CUContext{})
	_, prepare := o.run.Prepare(plan, one, nil)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no context":         {none, "got none"},
		"addresses":          {o.run.Gather(o.stream, plan, nil, one), "0 output and 1 entry addresses, want 1 and 1"},
		"addresses, ahead":   {prepare, "1 output and 0 entry addresses"},
		"relative addresses": {o.run.Moves(o.stream, make([]flatten.Move, 1)), "want absolute addresses"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: got %v, want it to say %q", name, tt.err, tt.want)
		}
	}
}

func TestClosedContext(t *testing.T) {
	o := newOwner(t, 0)
	o.run.Close()
	o.run.Close()
	_, prepare := o.run.Prepare(nil, nil, nil)
	for name, err := range map[string]error{
		"Gather":  o.run.Gather(o.stream, nil, nil, nil),
		"Moves":   o.run.Moves(o.stream, nil),
		"Permute": o.run.Permute(o.stream, nil),
		"Prepare": prepare,
	} {
		if !errors.Is(err, gpu.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
}

// Whatever call of the driver fails, no module and no memory stays, and the primary
// context is left alone.
func TestContextLeavesNothing(t *testing.T) {
	fakeOnly(t)
	o := newOwner(t, 0)
	b := o.bench(t)
	rows := b.alloc(make([]byte, 1<<20))
	use := func() error {
		c, err := gpu.NewContext(o.context)
		if err != nil {
			return err
		}
		defer c.Close()
		p := &flatten.Permutation{Origin: uint64(rows), Unit: 16, Grain: 16, Ends: []int32{2}, Closed: []bool{true}, Pos: []uint32{0, 9}}
		return c.Permute(o.stream, p)
	}
	calls := func() int { return len(fakecuda.Log()) }
	fakecuda.Reset()
	b.must(use())
	most := calls()
	for n := 1; n <= most; n++ {
		clean := fakecuda.Alive()
		fakecuda.Reset()
		fakecuda.Fail(fakecuda.Any, n, 999)
		err := use()
		fakecuda.Reset()
		if alive := fakecuda.Alive(); alive.Contexts != clean.Contexts {
			t.Errorf("call %d fails (%v): got %d contexts, want %d", n, err, alive.Contexts, clean.Contexts)
		} else if err != nil && alive != clean {
			t.Errorf("call %d fails (%v): got %+v, want %+v", n, err, alive, clean)
		}
	}
}

func TestContextAllocatesNothing(t *testing.T) {
	o := newOwner(t, 0)
	b := o.bench(t)
	plan := new(flatten.Plan)
	b.must(plan.BuildPlain(&flatten.Layout{
		NumKeys: 2, Batches: 1, RowShape: []int64{64}, Rows: []int64{6, 5},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}))
	dst := pointers([]uintptr{b.alloc(make([]byte, 11*64))})
	src := pointers([]uintptr{b.alloc(make([]byte, 6*64)), b.alloc(make([]byte, 5*64))})
	run := func() {
		if err := o.run.Gather(o.stream, plan, dst, src); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(20, run); n != 0 {
		t.Errorf("got %v allocations a call, want 0", n)
	}
}

// The handle is the pointer that the driver gave out.
func TestStreamHandle(t *testing.T) {
	o := newOwner(t, 0)
	if got, want := gpu.StreamHandle(o.stream), uintptr(unsafe.Pointer(o.stream.C())); got != want {
		t.Errorf("got %#x, want %#x", got, want)
	}
	if got := gpu.StreamHandle(cu.NoStream); got != 0 {
		t.Errorf("no stream: got %#x, want 0", got)
	}
}
