package flatten

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// run plans a job and compares all ways to run it.
func (j *job) run(t *testing.T) {
	t.Helper()
	j.fillSrc(rand.New(rand.NewPCG(3, 4)))
	l, err := NewLayout(nil, j.batches, j.entries, j.dim)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(l, j.entries, j.outs)
	if err != nil {
		t.Fatal(err)
	}
	checkJob(t, j, l, p)
}

// The shapes at which strips, tiles, bands and cuts end, for each element size
// with a loop of its own and for two without.
func TestTransposed(t *testing.T) {
	for _, elem := range []uint16{1, 2, 3, 4, 8, 12, 16} {
		for _, side := range [][2]int64{{1, 1}, {2, 2}, {63, 5}, {64, 255}, {65, 257}, {130, 3}, {3, 600}} {
			t.Run(fmt.Sprintf("%d bytes/%dx%d", elem, side[0], side[1]), func(t *testing.T) {
				size := int64(elem)
				entry := Entry{View: View{side[:], []int64{size, size * side[0]}}, DType: DType{CodeUint, 8, elem}}
				(&job{batches: 1, entries: []Entry{entry}}).run(t)
				stacked := View{[]int64{2, side[0], side[1]}, []int64{size * side[0] * side[1], size, size * side[0]}}
				(&job{dim: 1, batches: 1, entries: []Entry{{View: stacked, DType: entry.DType}}}).run(t)
			})
		}
	}
}

// Every pair of alignments of entry and output, inside memory that must not change.
func TestAlignments(t *testing.T) {
	shape := []int64{3, 5}
	entries := strided(shape, []int64{-40, 8})
	l, err := NewLayout(nil, 1, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(l, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	j := &job{batches: 1, entries: entries}
	j.fillSrc(rand.New(rand.NewPCG(5, 6)))
	want := j.naive(l)
	for from := range 16 {
		for to := range 16 {
			src := append(make([]byte, from), j.src[0]...)
			guarded := slices.Repeat([]byte{filler}, to+len(want[0])+16)
			dst := guarded[to : to+len(want[0])]
			p.Execute([][]byte{dst}, [][]byte{src[from:]}, 0)
			compare(t, fmt.Sprintf("src+%d, dst+%d", from, to), [][]byte{dst}, want)
			for i, got := range guarded {
				if (i < to || i >= to+len(dst)) && got != filler {
					t.Fatalf("src+%d, dst+%d: guard byte %d is %d", from, to, i-to, got)
				}
			}
		}
	}
}

func TestLargeJobsOnManyWorkers(t *testing.T) {
	jobs := map[string]*job{
		"plain":              {batches: 2, entries: tensors([]int64{1 << 19}, []int64{1000}, []int64{3}, []int64{1 << 20})},
		"one key":            {batches: 1, entries: tensors([]int64{1<<20 + 7})},
		"last dim":           {dim: 1, batches: 1, entries: tensors([]int64{1000, 700}, []int64{1000, 333})},
		"transposed":         {batches: 1, entries: strided([]int64{1000, 700}, []int64{4, 4000}, []int64{500, 700}, []int64{4, 2000})},
		"expanded rows":      {batches: 1, entries: strided([]int64{1000, 700}, []int64{0, 4}, []int64{1000, 700}, []int64{0, 4})},
		"overlapping source": {batches: 1, entries: strided([]int64{1000, 700}, []int64{4, 4})},
		"rows with gaps":     {batches: 1, entries: tensors([]int64{1000, 700}), outs: []View{{[]int64{1000, 700}, []int64{3000, 4}}}},
	}
	for name, j := range jobs {
		t.Run(name, func(t *testing.T) {
			j.fillSrc(rand.New(rand.NewPCG(7, 8)))
			l, err := NewLayout(nil, j.batches, j.entries, j.dim)
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPlan(l, j.entries, j.outs)
			if err != nil {
				t.Fatal(err)
			}
			want := j.naive(l)
			for _, workers := range []int{0, 1, 2, 3, 7, 1000} {
				got := j.newDst(l)
				p.Execute(got, j.src, workers)
				compare(t, fmt.Sprintf("%d workers", workers), got, want)
			}
		})
	}
}

func TestUsefulWorkers(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	for _, tt := range []struct {
		allowed int
		total   int64
		want    int
	}{
		{8, 0, 1},
		{8, workerBytes, 1},
		{8, 2*workerBytes - 1, 1},
		{8, 2 * workerBytes, 2},
		{8, 1 << 40, 8},
		{1, 1 << 40, 1},
		{0, 1 << 40, procs},
		{-1, 1 << 40, procs},
	} {
		if got := usefulWorkers(tt.allowed, tt.total); got != tt.want {
			t.Errorf("%d allowed, %d bytes: got %d, want %d", tt.allowed, tt.total, got, tt.want)
		}
	}
}

func TestCutsAreEvenAndOnCacheLines(t *testing.T) {
	l := &Layout{NumKeys: 4, Batches: 1, Rows: []int64{5 << 20, 3, 0, 1 << 20}, DType: bytes1}
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	total, n := l.Bytes(), 7
	cuts := p.cuts(total, n)
	if len(cuts) != n+1 || cuts[0] != (cut{}) || cuts[n] != (cut{seg: len(p.Segments)}) {
		t.Fatalf("got %v", cuts)
	}
	for i := range n {
		if cuts[i].at%cutAlign != 0 {
			t.Errorf("cut %d: got %v", i, cuts[i])
		}
		var got int64
		p.between(cuts[i], cuts[i+1], func(_ *Segment, first, end int64) { got += end - first })
		if want := total / int64(n); got < want-cutAlign || got > want+cutAlign {
			t.Errorf("share %d: got %d bytes, want about %d", i, got, want)
		}
	}
}

func TestShortSlicesPanic(t *testing.T) {
	l := uniform(2, 2, 3, 4)
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	runs := map[string]func(dst, src [][]byte){
		"Apply":   func(dst, src [][]byte) { Apply(dst, src, p) },
		"Execute": func(dst, src [][]byte) { p.Execute(dst, src, 1) },
		"checked": p.checkBounds,
	}
	for name, run := range runs {
		t.Run(name+"/dst", func(t *testing.T) {
			dst, src := memory(l)
			dst[1] = dst[1][:len(dst[1])-1] // still there as capacity
			mustPanic(t, func() { run(dst, src) })
		})
		t.Run(name+"/src", func(t *testing.T) {
			dst, src := memory(l)
			src[3] = src[3][:len(src[3])-1]
			mustPanic(t, func() { run(dst, src) })
		})
	}
}

func TestLargeJobPanicsOnTheCallersGoroutineBeforeWriting(t *testing.T) {
	l := uniform(2, 1, 1<<20, 1)
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	dst, src := memory(l)
	src[1] = src[1][:10]
	mustPanic(t, func() { p.Execute(dst, src, 4) })
	if at := slices.IndexFunc(dst[0], func(b byte) bool { return b != 0 }); at >= 0 {
		t.Errorf("byte %d was written", at)
	}
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("got no panic")
		}
	}()
	f()
}

func TestVerifyFindsBrokenPlans(t *testing.T) {
	breaks := []struct {
		name, want string
		damage     func(p *Plan)
	}{
		{"segment missing", "gets", func(p *Plan) { p.Segments = p.Segments[1:] }},
		{"segment twice", "written twice", func(p *Plan) { p.Segments = slices.Insert(p.Segments, 0, p.Segments[0]) }},
		{"order", "out of order", func(p *Plan) { slices.Reverse(p.Segments) }},
		{"other batch", "batch", func(p *Plan) { p.Segments[0].Batch++ }},
		{"part of an element", "bytes", func(p *Plan) { p.Segments[0].Bytes-- }},
		{"reads below", "out of bounds", func(p *Plan) { p.Segments[0].Src = -4 }},
		{"reads beyond", "out of bounds", func(p *Plan) { p.Segments[0].Src += 4 }},
		{"writes beyond", "out of bounds", func(p *Plan) { p.Segments[1].Dst += 4 }},
		{"axis of one turn", "axis", func(p *Plan) { p.Segments[0].Axes = []Axis{{1, 0, 4}} }},
		{"too many axes", "axes", func(p *Plan) { p.Segments[0].Axes = make([]Axis, MaxAxes+1) }},
		{"gap", "written twice", func(p *Plan) { p.Segments[1].Dst -= 4 }},
	}
	for _, tt := range breaks {
		t.Run(tt.name, func(t *testing.T) {
			p := new(Plan)
			if err := p.BuildPlain(uniform(2, 2, 3, 4)); err != nil {
				t.Fatal(err)
			}
			tt.damage(p)
			if err := p.verify(nil, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// With one processor a worker begins only after the caller has moved everything:
// the caller must not wait for it, and it must not touch memory that is no longer the job's.
func TestLateWorkersFindNothingToDo(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := uniform(4, 4, 16, 256)
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	var moved int64
	over := false
	p.share(l.Bytes(), 8, func(_ *Segment, first, end int64) {
		if over {
			t.Error("bytes were moved after the job")
		}
		moved += end - first
	})
	over = true
	for range 100 {
		runtime.Gosched()
	}
	if moved != l.Bytes() {
		t.Errorf("got %d bytes, want %d", moved, l.Bytes())
	}
}

// A worker that has begun is waited for, however long it takes.
func TestSlowWorkersAreWaitedFor(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("one processor: the caller does it all")
	}
	l := uniform(4, 4, 16, 256)
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	var moved atomic.Int64
	p.share(l.Bytes(), 2, func(_ *Segment, first, end int64) {
		time.Sleep(100 * time.Microsecond) // far longer than a caller that has nothing left looks on
		moved.Add(end - first)
	})
	if got := moved.Load(); got != l.Bytes() {
		t.Errorf("got %d bytes, want %d", got, l.Bytes())
	}
}
