package flatten

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var bytes1 = DType{CodeUint, 8, 1}

// Every bound at which a narrower integer would wrap, from both sides: the end of
// the last segment is the output's size, and the one before begins where it should.
func TestHugePlans(t *testing.T) {
	for _, bound := range []int64{1 << 16, 1 << 31, 1 << 32, 1 << 33, 1 << 53, 1 << 62} {
		for _, by := range []int64{-1, 0, 1} {
			t.Run(fmt.Sprintf("2^%.0f%+d", math.Log2(float64(bound)), by), func(t *testing.T) {
				n := bound + by
				l := &Layout{NumKeys: 3, Batches: 1, Rows: []int64{n - 9, 9, 5}, DType: bytes1}
				p := new(Plan)
				if err := p.BuildPlain(l); err != nil {
					t.Fatal(err)
				}
				last := p.Segments[2]
				if last.Dst != n || last.Dst+last.Bytes != l.BatchBytes(0) {
					t.Errorf("last segment: got %v, want dst %d", last, n)
				}
				checkOtherWays(t, l, p)
			})
		}
	}
}

// checkOtherWays compares a plain plan with what Build makes of the same job
// with its strides spelled out, for the inputs and then for the output too.
func checkOtherWays(t *testing.T, l *Layout, plain *Plan) {
	t.Helper()
	if err := plain.verify(nil, nil); err != nil {
		t.Error(err)
	}
	entries := make([]Entry, len(l.Rows))
	for e := range entries {
		entries[e] = Entry{View: View{Shape: l.EntryShape(e/l.Batches, e%l.Batches)}, DType: l.DType}
		entries[e].Strides = packedStrides(entries[e].Shape, l.DType.ElemBytes())
	}
	outs := make([]View, l.Batches)
	for b := range outs {
		outs[b] = View{Shape: l.OutShape(b)}
		outs[b].Strides = packedStrides(outs[b].Shape, l.DType.ElemBytes())
	}
	for _, outs := range [][]View{nil, outs} {
		p, err := NewPlan(l, entries, outs)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.String(), plain.String(); got != want {
			t.Errorf("with strides: got %s, want %s", got, want)
		}
	}
}

func packedStrides(shape []int64, elem int64) []int64 {
	strides := make([]int64, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = elem
		elem *= shape[i]
	}
	return strides
}

func TestPlainPlansEqualStridedOnes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	p := new(Plan)
	for range 2000 {
		l := &Layout{NumKeys: 1 + rng.IntN(4), Batches: 1 + rng.IntN(4), DType: float32s}
		for range rng.IntN(4) {
			l.RowShape = append(l.RowShape, 1+rng.Int64N(4))
		}
		l.Dim = rng.IntN(len(l.RowShape) + 1)
		for range l.NumKeys * l.Batches {
			l.Rows = append(l.Rows, rng.Int64N(4))
		}
		if err := p.BuildPlain(l); err != nil {
			t.Fatal(err)
		}
		checkOtherWays(t, l, p)
	}
}

func TestHugeStridedPlan(t *testing.T) {
	side := int64(1) << 17 // a transposed square of 2^34 elements, 2^36 bytes
	entries := strided([]int64{side, side}, []int64{4, 4 * side}, []int64{side, side}, []int64{0, 4 * side})
	l, err := NewLayout(nil, 1, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(l, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.verify(entries, nil); err != nil {
		t.Error(err)
	}
	if got, want := p.Segments[1].Dst, int64(1)<<36; got != want {
		t.Errorf("second entry: got dst %d, want %d", got, want)
	}
}

func TestManySegments(t *testing.T) {
	tests := []struct {
		name          string
		keys, batches int
	}{
		{"70000 batches of one row", 1, 70_000},
		{"70000 keys", 70_000, 1},
		{"65536 batches", 2, 65_536},
		{"2^22+1 segments", 1<<22 + 1, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.keys * tt.batches
			if n > 1<<20 && testing.Short() {
				t.Skip("takes 600 MB")
			}
			l := &Layout{NumKeys: tt.keys, Batches: tt.batches, Rows: slices.Repeat([]int64{1}, n), DType: bytes1}
			p := new(Plan)
			if err := p.BuildPlain(l); err != nil {
				t.Fatal(err)
			}
			if len(p.Segments) != n {
				t.Fatalf("got %d segments, want %d", len(p.Segments), n)
			}
			checkManySegments(t, l, p)
		})
	}
}

// checkManySegments moves one byte per entry and looks at every one.
func checkManySegments(t *testing.T, l *Layout, p *Plan) {
	t.Helper()
	memory := make([]byte, len(l.Rows))
	src := make([][]byte, len(l.Rows))
	for e := range src {
		memory[e] = byte(e * 7)
		src[e] = memory[e : e+1]
	}
	dst := make([][]byte, l.Batches)
	for b := range dst {
		dst[b] = make([]byte, l.NumKeys)
	}
	p.Execute(dst, src, 0)
	for e := range memory {
		if got, want := dst[e%l.Batches][e/l.Batches], memory[e]; got != want {
			t.Fatalf("entry %d: got %d, want %d", e, got, want)
		}
	}
}

func TestManyDims(t *testing.T) {
	for _, ndim := range []int{8, 64, 100} {
		t.Run(fmt.Sprint(ndim), func(t *testing.T) {
			j := manyDims(ndim)
			j.fillSrc(rand.New(rand.NewPCG(1, 2)))
			l, err := NewLayout(nil, 1, j.entries, j.dim)
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPlan(l, j.entries, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkJob(t, j, l, p)
		})
	}
}

// manyDims is a job of ndim dims, eight of them of extent 2 and in reversed
// order in memory, so that nothing joins.
func manyDims(ndim int) *job {
	shape, strides := slices.Repeat([]int64{1}, ndim), slices.Repeat([]int64{-3}, ndim)
	for i := range 8 {
		at := i * ndim / 8
		shape[at], strides[at] = 2, 4<<i
	}
	entries := strided(shape, strides, shape, strides)
	return &job{dim: ndim - 1, batches: 1, entries: entries}
}

func TestBuildErrors(t *testing.T) {
	entries := func() []Entry { return tensors([]int64{2, 4}, []int64{3, 4}) }
	view := func(strides []int64, shape ...int64) []View { return []View{{shape, strides}} }
	tests := []struct {
		name    string
		entries []Entry
		outs    []View
		is      error
		text    string
	}{
		{"entry missing", entries()[:1], nil, ErrShape, `goflat: shape: got 1 entries, want 2 keys of 1 batches each`},
		{"other rows", tensors([]int64{2, 4}, []int64{4, 4}), nil, ErrShape, `goflat: shape: key "#1", batch 0: got (4, 4), want (3, 4)`},
		{"other row shape", tensors([]int64{2, 4}, []int64{3, 5}), nil, ErrShape, `goflat: shape: key "#1", batch 0: got (3, 5), want (*, 4)`},
		{"legacy where there were rows", tensors([]int64{2, 4}, []int64{0}), nil, ErrShape, `goflat: shape: key "#1", batch 0: got (0,), want (*, 4)`},
		{"output missing", entries(), []View{}, ErrShape, `goflat: shape: got 0 outputs, want 1, one per batch`},
		{"output too short", entries(), view(nil, 4, 4), ErrShape, `goflat: shape: batch 0: got (4, 4), want (5, 4)`},
		{"output of other dims", entries(), view(nil, 20), ErrShape, `goflat: shape: batch 0: got (20,), want (5, 4)`},
		{"output with too few strides", entries(), view([]int64{4}, 5, 4), ErrShape, `goflat: shape: batch 0: got strides (4,) for shape (5, 4), want one per dim, within 63 bits`},
		{"expanded output", entries(), view([]int64{0, 4}, 5, 4), ErrOverlap, `goflat: overlap: batch 0: got strides (0, 4) for shape (5, 4), want elements that share no byte`},
		{"output whose rows overlap", entries(), view([]int64{12, 4}, 5, 4), ErrOverlap, `goflat: overlap: batch 0: got strides (12, 4) for shape (5, 4), want elements that share no byte`},
		{"output whose elements overlap", entries(), view([]int64{16, 3}, 5, 4), ErrOverlap, `goflat: overlap: batch 0: got strides (16, 3) for shape (5, 4), want elements that share no byte`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := NewLayout(nil, 1, entries(), 0)
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPlan(l, tt.entries, tt.outs)
			if !errors.Is(err, tt.is) || p != nil {
				t.Fatalf("got %v, %v, want %v", p, err, tt.is)
			}
			if got := err.Error(); got != tt.text {
				t.Errorf("got  %s\nwant %s", got, tt.text)
			}
		})
	}
}

func TestPlanIsEmptyAfterAnError(t *testing.T) {
	p := new(Plan)
	good, bad := uniform(2, 2, 3, 4), uniform(2, 2, 3, -4)
	if err := p.BuildPlain(good); err != nil || len(p.Segments) != 4 {
		t.Fatalf("got %d segments, %v", len(p.Segments), err)
	}
	if err := p.BuildPlain(bad); err == nil || len(p.Segments) != 0 {
		t.Errorf("plain: got %d segments, %v", len(p.Segments), err)
	}
	if err := p.Build(good, nil, nil); err == nil || len(p.Segments) != 0 {
		t.Errorf("got %d segments, %v", len(p.Segments), err)
	}
}

// The call of the bridge: a layout that changes every time, in memory it keeps.
func TestHotPathDoesNotAllocate(t *testing.T) {
	if invariants {
		t.Skip("checking plans allocates")
	}
	var call struct {
		layout Layout
		plan   Plan
	}
	template := uniform(8, 4, 5, 16)
	dst, src := memory(template)
	rows := slices.Clone(template.Rows)
	round := int64(0)
	got := testing.AllocsPerRun(100, func() {
		round++
		rows[round%int64(len(rows))] = round % 6
		call.layout = Layout{NumKeys: 8, Batches: 4, RowShape: template.RowShape, Rows: rows, DType: float32s}
		if err := call.plan.BuildPlain(&call.layout); err != nil {
			t.Fatal(err)
		}
		call.plan.Execute(dst, src, 0)
	})
	if got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

func TestStridedBuildDoesNotAllocateAgain(t *testing.T) {
	if invariants {
		t.Skip("checking plans allocates")
	}
	entries := strided([]int64{4, 3}, []int64{4, 16}, []int64{5, 3}, []int64{24, 8}, []int64{2, 3}, []int64{-12, 4}, []int64{1, 3}, []int64{0, 0})
	outs := []View{{[]int64{6, 3}, []int64{4, 24}}, {[]int64{6, 3}, []int64{40, 8}}}
	l, err := NewLayout(nil, 2, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := new(Plan)
	if got := testing.AllocsPerRun(100, func() {
		if err := p.Build(l, entries, outs); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

func TestBuildPlainIntoEqualsBuild(t *testing.T) {
	for dim := range 3 {
		l := &Layout{NumKeys: 2, Batches: 2, Dim: dim, RowShape: []int64{3, 2}, Rows: []int64{1, 0, 4, 2}, DType: DType{CodeFloat, 32, 1}}
		entries, outs := make([]Entry, len(l.Rows)), make([]View, l.Batches)
		for e := range entries {
			entries[e] = Entry{View: View{Shape: l.EntryShape(e/2, e%2)}, DType: l.DType}
		}
		for b := range outs {
			outs[b] = View{Shape: l.OutShape(b)}
		}
		want, err := NewPlan(l, entries, outs)
		if err != nil {
			t.Fatal(err)
		}
		got := new(Plan)
		if err := got.BuildPlainInto(l, outs); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("dim %d: got\n%v\nwant\n%v", dim, got, want)
		}
	}
}
