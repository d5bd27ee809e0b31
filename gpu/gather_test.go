package gpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

// placed is a task whose buffers are on a device.
type placed struct {
	*task
	b                  *bench
	dstAt, srcAt       []uintptr // of the buffers
	dstFrom, srcFrom   []uintptr // of the payloads
	device             int
	expected, original [][]byte // outputs as they should become, and as they are
}

// smallTask puts a job of four keys and two batches on a device.
func smallTask(t testing.TB, device int) *placed {
	t.Helper()
	l := &flatten.Layout{
		NumKeys: 4, Batches: 2, RowShape: []int64{37}, Rows: []int64{3, 1, 0, 7, 20, 2, 5, 5},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}
	plan := new(flatten.Plan)
	if err := plan.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	p := &placed{task: newTask(rand.New(rand.NewPCG(1, 2)), plan, nil, nil, aligned, 0), b: onDevice(t, device), device: device}
	p.dstAt, p.srcAt = p.b.placeAll(p.dst), p.b.placeAll(p.src)
	p.dstFrom, p.srcFrom = payloads(p.dst, p.dstAt), payloads(p.src, p.srcAt)
	for b := range p.dst {
		p.original = append(p.original, slices.Clone(p.dst[b].all))
	}
	p.expect()
	return p
}

// expect computes the outputs from what the entries now hold.
func (p *placed) expect() {
	p.expected = nil
	var src [][]byte
	for b := range p.dst {
		p.expected = append(p.expected, make([]byte, len(p.dst[b].all)))
	}
	for e := range p.src {
		src = append(src, p.src[e].payload())
	}
	flatten.Apply(p.expected, src, p.plan)
}

func (p *placed) gather() error {
	return gpu.Gather(p.device, p.b.stream, p.plan, p.dstFrom, p.srcFrom)
}

// verify waits and compares the outputs on the device with the expected ones.
func (p *placed) verify(t testing.TB) {
	t.Helper()
	p.b.wait()
	p.b.readAll(p.dst, p.dstAt)
	for b := range p.dst {
		if i := firstDifference(p.dst[b].all, p.expected[b]); i >= 0 {
			t.Errorf("output %d differs at byte %d", b, i)
		}
	}
}

// clear writes what the outputs held at first.
func (p *placed) clear() {
	for b := range p.dst {
		p.b.write(p.dstAt[b], p.original[b])
	}
}

// current returns the thread's context as text.
func current(t testing.TB) string {
	t.Helper()
	c, err := cu.CurrentContext()
	if err != nil {
		t.Fatal(err)
	}
	return c.String()
}

func TestGatherLeavesTheContextAlone(t *testing.T) {
	p := smallTask(t, 0)
	mine, err := cu.CurrentContext()
	p.b.must(err)
	contexts := map[string]cu.CUContext{"its own": mine, "none": {}}
	if numDevices(t) > 1 {
		other, err := cu.Device(1).RetainPrimaryCtx()
		p.b.must(err)
		defer func() { p.b.must(cu.Device(1).ReleasePrimaryCtx()) }()
		contexts["another device's"] = other
	}
	for name, context := range contexts {
		p.b.must(cu.SetCurrentContext(context))
		before := current(t)
		if err := p.gather(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if after := current(t); after != before {
			t.Errorf("%s: got context %s, want %s", name, after, before)
		}
		if onFake { // an installed driver may crash on a handle that is none
			var failed *gpu.Error
			if err := gpu.Gather(0, 4096, p.plan, p.dstFrom, p.srcFrom); !errors.As(err, &failed) {
				t.Errorf("%s: a bad stream gave %v", name, err)
			}
			if after := current(t); after != before {
				t.Errorf("%s: after an error got context %s, want %s", name, after, before)
			}
		}
		p.b.must(cu.SetCurrentContext(mine))
		p.verify(t)
		p.clear()
	}
}

func TestGatherRefuses(t *testing.T) {
	p := smallTask(t, 0)
	tests := []struct {
		name     string
		device   int
		dst, src []uintptr
		want     string
	}{
		{"no such device", 99, p.dstFrom, p.srcFrom, "there is no device 99"},
		{"negative device", -1, p.dstFrom, p.srcFrom, "there is no device -1"},
		{"too few outputs", 0, p.dstFrom[1:], p.srcFrom, "got 1 output and 8 entry addresses, want 2 and 8"},
		{"too few entries", 0, p.dstFrom, p.srcFrom[2:], "got 2 output and 6 entry addresses, want 2 and 8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := gpu.Gather(tt.device, p.b.stream, p.plan, tt.dst, tt.src)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if tt.device != 0 && !errors.Is(err, gpu.ErrNoDevice) {
				t.Errorf("got %v, want it to be ErrNoDevice", err)
			}
		})
	}
}

// A plan without bytes needs no device.
func TestGatherOfNothing(t *testing.T) {
	l := &flatten.Layout{NumKeys: 1, Batches: 2, RowShape: []int64{4}, Rows: []int64{0, 0}, DType: flatten.DType{Bits: 8, Lanes: 1}}
	plan := new(flatten.Plan)
	if err := plan.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	if err := gpu.Gather(99, 0, plan, []uintptr{0, 0}, []uintptr{0, 0}); err != nil {
		t.Error(err)
	}
}

// Batches of one job may live on several devices; each Gather moves its own.
func TestGatherMovesOnlyItsDevice(t *testing.T) {
	p := smallTask(t, 0)
	p.plan.Layout.Devices = []flatten.Device{{Type: flatten.DeviceCUDA, Index: 1}, {Type: flatten.DeviceCUDA, Index: 0}}
	p.expected[0] = p.original[0]
	p.dstFrom[0] = 0
	if err := p.gather(); err != nil {
		t.Fatal(err)
	}
	p.verify(t)
}

func TestGatherOnReservedStreams(t *testing.T) {
	for stream := range uintptr(3) {
		p := smallTask(t, 0)
		p.clear()
		if err := gpu.Gather(0, stream, p.plan, p.dstFrom, p.srcFrom); err != nil {
			t.Errorf("stream %d: %v", stream, err)
		}
		p.b.must(cu.Synchronize())
		p.verify(t)
	}
}

// A captured gather runs at each launch of the graph, with what the entries hold then.
// Loading the kernels must not disturb the capture.
func TestGatherIsCaptured(t *testing.T) {
	for _, name := range []string{"cold", "warm"} {
		t.Run(name, func(t *testing.T) {
			p := smallTask(t, 0)
			if name == "cold" {
				gpu.Unload(0)
			}
			p.b.must(cudatest.BeginCapture(p.b.stream))
			if err := p.gather(); err != nil {
				t.Fatal(err)
			}
			graph, err := cudatest.EndCapture(p.b.stream)
			p.b.must(err)
			defer func() { p.b.must(graph.Destroy()) }()
			for round := range 3 {
				p.clear()
				for e := range p.src {
					for i := range p.src[e].all {
						p.src[e].all[i] += byte(round)
					}
					p.b.write(p.srcAt[e], p.src[e].all)
				}
				p.expect()
				p.b.must(graph.Launch(p.b.stream))
				p.verify(t)
			}
		})
	}
}

func TestGatherAllocatesNothing(t *testing.T) {
	for _, keys := range []int{4, 1024} {
		b := onDevice(t, 0)
		l := &flatten.Layout{
			NumKeys: keys, Batches: 2, RowShape: []int64{3}, Rows: slices.Repeat([]int64{1}, 2*keys),
			DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
		}
		plan := new(flatten.Plan)
		b.must(plan.BuildPlain(l))
		base := b.alloc(make([]byte, 8*keys))
		dst, src := []uintptr{base, base + uintptr(3*keys)}, slices.Repeat([]uintptr{base + uintptr(6*keys)}, 2*keys)
		if n := testing.AllocsPerRun(20, func() { b.must(gpu.Gather(0, b.stream, plan, dst, src)) }); n != 0 {
			t.Errorf("%d keys: got %v allocations, want 0", keys, n)
		}
		b.wait()
	}
}

func TestGatherFromManyThreads(t *testing.T) {
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				p := smallTask(t, i%numDevices(t))
				for range 20 {
					p.clear()
					if err := p.gather(); err != nil {
						t.Error(err)
					}
					p.verify(t)
				}
			})
		})
	}
	group.Wait()
}

func TestLaunchErrors(t *testing.T) {
	fakeOnly(t)
	tests := []struct {
		call string
		code int
		want string
		is   error
	}{
		{"cuLaunchKernel", 700, "launch gather_warp_4k (2 blocks): [cuLaunchKernel][CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was encountered", nil},
		{"cuModuleLoadData", 2, "load kernels on device 0: [cuModuleLoadData][CUDA_ERROR_OUT_OF_MEMORY] out of memory", gpu.ErrOutOfMemory},
		{"cuDevicePrimaryCtxRetain", 12345, "load kernels on device 0: [cuDevicePrimaryCtxRetain][12345] unknown error", nil},
	}
	for _, tt := range tests {
		t.Run(tt.call, func(t *testing.T) {
			p := smallTask(t, 0)
			gpu.Unload(0)
			fakecuda.Fail(tt.call, 1, tt.code)
			err := p.gather()
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want it to be %v", err, tt.is)
			}
			if err := p.gather(); err != nil {
				t.Errorf("the next call: %v", err)
			}
			p.verify(t)
		})
	}
}

// Whatever driver call fails, nothing stays behind, the thread has the context it had,
// and the next call works.
func TestEveryCallMayFail(t *testing.T) {
	fakeOnly(t)
	p := smallTask(t, 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, device := range []int{1, 0, -1} { // what is current: the job's own, another's, none
		t.Run(fmt.Sprintf("context %d", device), func(t *testing.T) { everyCallMayFail(t, p, device) })
	}
}

// leaveContexts empties the thread's stack of contexts: where popping fails, what was current is put on top again, and
// a later test may run on the same thread.
func leaveContexts(b *bench) {
	for fakecuda.Current() >= 0 {
		b.must(cu.SetCurrentContext(cu.CUContext{}))
	}
}

func everyCallMayFail(t *testing.T, p *placed, current int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var context cu.CUContext
	if current >= 0 {
		dev := cu.Device(current)
		var err error
		context, err = dev.RetainPrimaryCtx()
		p.b.must(err)
		defer func() { p.b.must(dev.ReleasePrimaryCtx()) }()
	}
	leaveContexts(p.b)
	defer leaveContexts(p.b)
	p.b.must(cu.SetCurrentContext(context))
	gpu.Unload(p.device)
	fakecuda.Reset()
	p.b.must(p.gather())
	calls := fakecuda.Log()
	for nth, call := range calls {
		gpu.Unload(p.device)
		clean := fakecuda.Alive()
		fakecuda.Reset()
		fakecuda.Fail(fakecuda.Any, nth+1, 2)
		err := p.gather()
		// Only leaving a context has a second way.
		if tolerated := call == "cuCtxPopCurrent"; (err == nil) != tolerated {
			t.Errorf("call %d, %s: got %v", nth, call, err)
		}
		if got := fakecuda.Current(); got != current {
			t.Errorf("call %d, %s: got the context of device %d, want %d", nth, call, got, current)
		}
		if alive := fakecuda.Alive(); !gpu.Loaded(p.device) && alive != clean {
			t.Errorf("call %d, %s: got %+v alive, want %+v", nth, call, alive, clean)
		}
		p.b.must(p.gather())
		gpu.Unload(p.device)
		if alive := fakecuda.Alive(); alive != clean {
			t.Errorf("call %d, %s: after another gather got %+v alive, want %+v", nth, call, alive, clean)
		}
	}
	if n := fakecuda.DamagedGuards(); n > 0 {
		t.Errorf("%d guard bytes changed", n)
	}
}

// The fake driver must notice what these tests are to find.
func TestFakeTraps(t *testing.T) {
	fakeOnly(t)
	move := func(t *testing.T, edit func(p *placed)) error {
		p := smallTask(t, 0)
		edit(p)
		p.b.must(p.gather())
		err := cudatest.Synchronize(p.b.stream)
		fakecuda.Reset()
		return err
	}
	tests := []struct {
		name string
		edit func(p *placed)
		want error
	}{
		{"nothing wrong", func(*placed) {}, nil},
		{"a byte too much read", func(p *placed) { p.srcFrom[0]++ }, cudatest.Code(700)},
		{"a byte too much written", func(p *placed) { p.dstFrom[1]++ }, cudatest.Code(700)},
		{"a byte in front", func(p *placed) { p.srcFrom[3]-- }, cudatest.Code(700)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := move(t, tt.edit); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
