package gpu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/internal/randjob"
)

// The suite below is run by everything that executes plans; what it expects is what
// flatten.Apply does.

// A buffer is the memory of an entry or an output, at a distance from an address that
// is a multiple of 256, with guard bytes around it.
type buffer struct {
	all    []byte // guards included
	lo, hi int    // the payload is all[lo:hi]
	align  int    // address of the payload's first byte modulo 256
}

func (b *buffer) payload() []byte { return b.all[b.lo:b.hi] }

// newBuffer returns n random bytes between guards of the given length.
func newBuffer(r *rand.Rand, n int64, align, guard int) buffer {
	random := make([]byte, 0, int(n)+2*guard+8)
	for len(random) < int(n)+2*guard {
		random = binary.LittleEndian.AppendUint64(random, r.Uint64())
	}
	return buffer{all: random[:int(n)+2*guard], lo: guard, hi: guard + int(n), align: align}
}

// A task is a plan and its memory.
type task struct {
	plan     *flatten.Plan
	dst, src []buffer
}

// newTask makes memory for a plan. guard is how many bytes lie around each buffer; with
// 0 the buffers end where their allocations do.
func newTask(r *rand.Rand, plan *flatten.Plan, entries []flatten.Entry, outs []flatten.View, align func() int, guard int) *task {
	l := plan.Layout
	l.Devices = nil // all on the device that runs it
	elem := l.DType.ElemBytes()
	k := &task{plan: plan}
	for b := range l.Batches {
		n := l.BatchBytes(b)
		if outs != nil {
			lo, hi := outs[b].Span(elem)
			n = hi - lo
		}
		k.dst = append(k.dst, newBuffer(r, n, align(), guard))
	}
	for e := range l.Rows {
		n := l.Rows[e] * l.RowBytes()
		if entries != nil {
			lo, hi := entries[e].Span(elem)
			n = hi - lo
		}
		k.src = append(k.src, newBuffer(r, n, align(), guard))
	}
	return k
}

// plainTask makes a task of contiguous uint8 entries.
func plainTask(t *testing.T, r *rand.Rand, batches int, rows []int64, rowBytes int64, align func() int, guard int) *task {
	t.Helper()
	l := &flatten.Layout{
		NumKeys: len(rows) / batches, Batches: batches, RowShape: []int64{rowBytes}, Rows: rows,
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}
	p := new(flatten.Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	return newTask(r, p, nil, nil, align, guard)
}

// A runner executes a task, leaving in the task's buffers what memory holds afterwards.
type runner func(t *testing.T, k *task)

// verify runs a task and compares all memory, guards and entries included.
func verify(t *testing.T, run runner, k *task) {
	t.Helper()
	dst, src := make([][]byte, len(k.dst)), make([][]byte, len(k.src))
	want := make([]buffer, len(k.dst))
	for b := range k.dst {
		want[b] = k.dst[b]
		want[b].all = slices.Clone(k.dst[b].all)
		dst[b] = want[b].payload()
	}
	inputs := make([][]byte, len(k.src))
	for e := range k.src {
		inputs[e] = slices.Clone(k.src[e].all)
		src[e] = k.src[e].payload()
	}
	flatten.Apply(dst, src, k.plan)
	run(t, k)
	for b := range want {
		if i := firstDifference(k.dst[b].all, want[b].all); i >= 0 {
			t.Fatalf("output %d, byte %d of %d: got %#x, want %#x", b, i-want[b].lo, want[b].hi-want[b].lo, k.dst[b].all[i], want[b].all[i])
		}
	}
	for e := range inputs {
		if !bytes.Equal(k.src[e].all, inputs[e]) {
			t.Fatalf("entry %d changed", e)
		}
	}
}

// firstDifference returns where two equally long slices differ first, or -1.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func runCPU(_ *testing.T, k *task) {
	dst, src := make([][]byte, len(k.dst)), make([][]byte, len(k.src))
	for b := range k.dst {
		dst[b] = k.dst[b].payload()
	}
	for e := range k.src {
		src[e] = k.src[e].payload()
	}
	k.plan.Execute(dst, src, 2)
}

// gatherer is gpu.Gather on a device, or something that should do the same.
type gatherer func(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error

// runOn returns a runner that gathers on a device.
func runOn(device int, gather gatherer) runner {
	return func(t *testing.T, k *task) {
		t.Helper()
		b := onDevice(t, device)
		dst, src := b.placeAll(k.dst), b.placeAll(k.src)
		b.must(gather(b.stream, k.plan, payloads(k.dst, dst), payloads(k.src, src)))
		b.wait()
		b.readAll(k.dst, dst)
		b.readAll(k.src, src)
	}
}

// placeAll copies buffers to the device and returns where each begins. A few get an
// allocation each, so that one may begin and end where its allocation does; many share one.
func (b *bench) placeAll(buffers []buffer) []uintptr {
	b.t.Helper()
	at := make([]uintptr, len(buffers))
	if len(buffers) <= 64 {
		for i := range buffers {
			front := buffers[i].front()
			at[i] = b.alloc(append(make([]byte, front), buffers[i].all...)) + uintptr(front)
			if onFake {
				fakecuda.Forbid(at[i]-uintptr(front), front)
			}
		}
		return at
	}
	var together []byte
	offsets := make([]int, len(buffers))
	for i := range buffers {
		together = append(together, make([]byte, (256-len(together)%256)%256+buffers[i].front())...)
		offsets[i] = len(together)
		together = append(together, buffers[i].all...)
	}
	base := b.alloc(together)
	for i := range at {
		at[i] = base + uintptr(offsets[i])
	}
	return at
}

// front returns how many bytes must lie between an address that is a multiple of 256
// and the buffer for its payload to be aligned as it wants.
func (b *buffer) front() int { return ((b.align-b.lo)%256 + 256) % 256 }

func (b *bench) readAll(buffers []buffer, at []uintptr) {
	b.t.Helper()
	for i := range buffers {
		b.read(buffers[i].all, at[i])
	}
}

func payloads(buffers []buffer, at []uintptr) []uintptr {
	addresses := make([]uintptr, len(buffers))
	for i := range buffers {
		addresses[i] = at[i] + uintptr(buffers[i].lo)
	}
	return addresses
}

func TestConformanceCPU(t *testing.T) { conform(t, runCPU, 1<<22+1) }

func TestConformanceGather(t *testing.T) {
	for device := range numDevices(t) {
		t.Run(fmt.Sprintf("device %d", device), func(t *testing.T) {
			gather := func(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
				return gpu.Gather(device, stream, plan, dst, src)
			}
			if onFake {
				fakecuda.Reset()
			}
			conform(t, runOn(device, gather), (1<<22+1)>>(8*device))
			if onFake {
				checkLaunched(t, fakecuda.Log())
			}
		})
	}
}

// unplanned is gpu.GatherPlain where it does what gpu.Gather does.
func unplanned(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
	l := plan.Layout
	var want flatten.Plan
	if err := want.BuildPlain(l); err != nil || l.Dim != 0 || !reflect.DeepEqual(want.Segments, plan.Segments) {
		return gpu.Gather(0, stream, plan, dst, src)
	}
	return gpu.GatherPlain(0, stream, l.Rows, l.RowBytes(), dst, src)
}

func TestConformanceGatherPlain(t *testing.T) { conform(t, runOn(0, unplanned), 10_000) }

// asMoves is gpu.Moves of a plan's segments.
func asMoves(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
	var moves []flatten.Move
	for _, s := range plan.Segments {
		moves = append(moves, flatten.Move{
			Dst:   flatten.Addr{Base: flatten.Absolute, Off: uint64(dst[s.Batch]) + uint64(s.Dst)},
			Src:   flatten.Addr{Base: flatten.Absolute, Off: uint64(src[s.Entry]) + uint64(s.Src)},
			Bytes: s.Bytes, Axes: s.Axes,
		})
	}
	return gpu.Moves(0, stream, moves)
}

// prepared is gpu.Gather in two steps.
func prepared(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
	p, err := gpu.Prepare(0, plan, dst, src)
	if err != nil {
		return err
	}
	return p.Launch(stream)
}

func TestConformancePrepared(t *testing.T) { conform(t, runOn(0, prepared), 10_000) }

func TestPreparedAllocatesNothing(t *testing.T) {
	d := onDevice(t, 0)
	l := &flatten.Layout{
		NumKeys: 2, Batches: 1, RowShape: []int64{16}, Rows: []int64{3, 2},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}
	plan := new(flatten.Plan)
	d.must(plan.BuildPlain(l))
	at := d.alloc(make([]byte, 4096))
	p, err := gpu.Prepare(0, plan, []uintptr{at}, []uintptr{at + 1024, at + 2048})
	d.must(err)
	if n := testing.AllocsPerRun(100, func() { d.must(p.Launch(d.stream)) }); n != 0 {
		t.Errorf("got %v allocations a launch, want 0", n)
	}
	d.wait()
	if _, err := gpu.Prepare(0, plan, nil, nil); err == nil {
		t.Error("got no error for too few addresses")
	}
}

func TestConformanceMoves(t *testing.T) { conform(t, runOn(0, asMoves), 10_000) }

func TestMovesRefuse(t *testing.T) {
	moves := []flatten.Move{{Dst: flatten.Addr{Base: flatten.Absolute}, Src: flatten.Addr{Base: flatten.Scratch}, Bytes: 1}}
	if err := gpu.Moves(0, 0, moves); err == nil || !strings.Contains(err.Error(), "got bases -1 and -2 in move 0") {
		t.Errorf("got %v, want a refusal of move 0", err)
	}
	if err := gpu.Moves(99, 0, nil); err != nil {
		t.Errorf("nothing to move: %v", err)
	}
}

func TestMovesAllocateNothing(t *testing.T) {
	b := onDevice(t, 0)
	at := uint64(b.alloc(make([]byte, 4096)))
	moves := []flatten.Move{
		{Dst: flatten.Addr{Base: flatten.Absolute, Off: at}, Src: flatten.Addr{Base: flatten.Absolute, Off: at + 2048}, Bytes: 1000},
		{Dst: flatten.Addr{Base: flatten.Absolute, Off: at + 1000}, Src: flatten.Addr{Base: flatten.Absolute, Off: at + 3100}, Bytes: 17},
	}
	if n := testing.AllocsPerRun(20, func() { b.must(gpu.Moves(0, b.stream, moves)) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	b.wait()
}

func TestConformanceReference(t *testing.T) {
	gather, unload, err := gpu.LoadReference(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unload()
	conform(t, runOn(0, gather), 10_000)
}

// checkLaunched checks that the suite has reached every kernel.
func checkLaunched(t *testing.T, log []string) {
	t.Helper()
	for k := range launch.NumKernels {
		if !slices.ContainsFunc(log, func(call string) bool { return strings.Contains(call, k.String()) }) {
			t.Errorf("%v was not launched", k)
		}
	}
}

func aligned() int { return 0 }

// conform is the suite. most is the number of segments of its largest plan.
func conform(t *testing.T, run runner, most int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	anyhow := func() int { return r.IntN(256) }

	t.Run("random", func(t *testing.T) {
		for i := range 150 {
			j, err := randjob.New(r)
			if err != nil {
				t.Fatal(err)
			}
			k := newTask(r, j.Plan, j.Entries, j.Outs, anyhow, 32*r.IntN(2))
			if !t.Run(fmt.Sprint(i), func(t *testing.T) { verify(t, run, k) }) {
				t.Fatalf("seed %d: %+v", seed, *j.Plan.Layout)
			}
		}
	})
	t.Run("alignments", func(t *testing.T) {
		for dst := range 16 {
			for src := range 16 {
				pair := []int{dst, src}
				next := func() int { pair = append(pair[1:], pair[0]); return pair[len(pair)-1] }
				for _, n := range []int64{1, 15, 16, 17, 33, 600, 5000} {
					k := plainTask(t, r, 1, []int64{n}, 1, next, 0)
					if !t.Run(fmt.Sprintf("%d bytes dst+%d src+%d", n, dst, src), func(t *testing.T) { verify(t, run, k) }) {
						return
					}
				}
			}
		}
	})
	t.Run("long and misaligned", func(t *testing.T) {
		for _, align := range []int{0, 1, 8, 13} {
			next := func() int { align ^= 5; return align }
			verify(t, run, plainTask(t, r, 2, []int64{200_001, 99_999, 100_003, 65_536}, 3, next, 0))
		}
	})
	t.Run("ragged", func(t *testing.T) {
		rows := make([]int64, 16*8)
		for i := range rows {
			rows[i] = int64(r.IntN(40))
		}
		verify(t, run, plainTask(t, r, 8, rows, 1040, aligned, 16))
	})
	t.Run("many long", func(t *testing.T) {
		verify(t, run, plainTask(t, r, 1, slices.Repeat([]int64{1}, 350), 16_400, anyhow, 0))
	})
	t.Run("tables of all sizes", func(t *testing.T) {
		for _, segments := range []int{300, 1000, 2000, 2700} {
			verify(t, run, plainTask(t, r, 4, slices.Repeat([]int64{1}, segments), 61, anyhow, 16))
		}
		// Odd lengths and many outputs leave no room for narrow records.
		verify(t, run, plainTask(t, r, 1200, slices.Repeat([]int64{1}, 1200), 1751, anyhow, 16))
	})
	t.Run("bulk", func(t *testing.T) {
		if onFake { // its few multiprocessors make the cases above bulky
			return
		}
		for _, align := range []func() int{aligned, anyhow} {
			verify(t, run, plainTask(t, r, 2, slices.Repeat([]int64{50_000}, 8), 501, align, 16))
		}
	})
	t.Run("one long and many tiny", func(t *testing.T) {
		rows := append(slices.Repeat([]int64{1}, 3000), 90_000)
		verify(t, run, plainTask(t, r, 1, rows, 61, anyhow, 0))
	})
	t.Run("nothing", func(t *testing.T) {
		verify(t, run, plainTask(t, r, 4, make([]int64, 8), 4, aligned, 16))
		verify(t, run, plainTask(t, r, 4, []int64{1, 2, 3, 4}, 0, aligned, 16))
	})
	t.Run("70000 batches", func(t *testing.T) {
		verify(t, run, plainTask(t, r, 70_000, slices.Repeat([]int64{1}, 70_000), 3, aligned, 0))
	})
	t.Run("70000 keys", func(t *testing.T) {
		verify(t, run, plainTask(t, r, 1, slices.Repeat([]int64{1}, 70_000), 5, aligned, 0))
	})
	t.Run("most segments", func(t *testing.T) {
		verify(t, run, manySegments(t, r, most))
	})
	t.Run("runs", func(t *testing.T) { conformRuns(t, r, run) })
	t.Run("tables of runs of all sizes", func(t *testing.T) {
		for _, n := range []int64{1040, 64, 100, 12} {
			for _, segments := range []int{20, 100, 300} {
				verify(t, run, runsTask(t, r, slices.Repeat([]int64{n}, segments), 2, 0, aligned))
			}
		}
	})
	t.Run("dim 1", func(t *testing.T) {
		for _, inner := range []int64{1, 7, 49, 1000} {
			verify(t, run, dimTask(t, r, []int64{3, 0, 5, 2, 1, 7}, inner, anyhow))
		}
		verify(t, run, dimTask(t, r, slices.Repeat([]int64{1, 2, 3}, 100), 6, anyhow))
		verify(t, run, dimTask(t, r, slices.Repeat([]int64{1}, 70), 260, anyhow))
		verify(t, run, dimTask(t, r, slices.Repeat([]int64{1, 2}, 40), 200, anyhow)) // long and short runs
		verify(t, run, dimTask(t, r, slices.Repeat([]int64{1, 3}, 4), 4, aligned))
		verify(t, run, dimTask(t, r, slices.Repeat([]int64{1, 2}, 40), 8, aligned))
	})
}

// conformRuns is the part of the suite about runs: of all kinds, at all alignments, side by side in the
// entries, as of contiguous ones, or with gaps between them.
func conformRuns(t *testing.T, r *rand.Rand, run runner) {
	t.Helper()
	for _, n := range []int64{1, 2, 3, 5, 8, 12, 15, 16, 17, 24, 31, 33, 48, 63, 64, 66, 100, 196, 516, 1000, 1023, 1024, 1040, 2047, 2049, 5000} {
		for range 12 {
			turns, unit := 2+int64(r.IntN(9)), 1<<r.IntN(5)
			gap := int64(r.IntN(2) * r.IntN(20) * unit)
			k := runsTask(t, r, []int64{n, 1 + int64(r.IntN(2*int(n)))}, turns, gap, func() int { return r.IntN(256) / unit * unit })
			if !t.Run(fmt.Sprintf("%d turns of %d bytes, gap %d", turns, n, gap), func(t *testing.T) { verify(t, run, k) }) {
				return
			}
		}
	}
}

// runsTask is a task of one output along dim 1 of entries of shape (turns, widths[k]) bytes, whose
// rows have a gap behind them.
func runsTask(t *testing.T, r *rand.Rand, widths []int64, turns, gap int64, align func() int) *task {
	t.Helper()
	dtype := flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1}
	var entries []flatten.Entry
	for _, n := range widths {
		v := flatten.View{Shape: []int64{turns, n}}
		if gap > 0 {
			v.Strides = []int64{n + gap, 1}
		}
		entries = append(entries, flatten.Entry{View: v, DType: dtype})
	}
	l, err := flatten.NewLayout(nil, 1, entries, 1)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := flatten.NewPlan(l, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newTask(r, plan, entries, nil, align, 0)
}

// manySegments is a task of n segments of one byte each, of one entry in reverse order.
func manySegments(t *testing.T, r *rand.Rand, n int) *task {
	t.Helper()
	k := plainTask(t, r, 1, []int64{int64(n)}, 1, aligned, 0)
	segments := make([]flatten.Segment, n)
	for i := range segments {
		segments[i] = flatten.Segment{Dst: int64(i), Src: int64(n - 1 - i), Bytes: 1}
	}
	k.plan.Segments = segments
	return k
}

// dimTask is a task of two batches along dim 1 of entries of shape (30, rows, inner), of
// 4 bytes.
func dimTask(t *testing.T, r *rand.Rand, rows []int64, inner int64, align func() int) *task {
	t.Helper()
	l := &flatten.Layout{
		NumKeys: len(rows) / 2, Batches: 2, Dim: 1, RowShape: []int64{30, inner}, Rows: rows,
		DType: flatten.DType{Code: flatten.CodeFloat, Bits: 32, Lanes: 1},
	}
	p := new(flatten.Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	return newTask(r, p, nil, nil, align, 16)
}
