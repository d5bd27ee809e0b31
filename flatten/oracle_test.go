package flatten

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// A job is one random or hand-made move with its memory.
type job struct {
	dim     int
	batches int
	entries []Entry
	outs    []View // nil for contiguous
	src     [][]byte
}

// naive is what torch.cat means, element by element, without Layout or Plan:
// every index of an output is looked up in the entries of its batch in key order.
// Bytes of a strided output between its elements keep the filler.
func (j *job) naive(l *Layout) [][]byte {
	dst := j.newDst(l)
	elem := l.DType.ElemBytes()
	for b := range dst {
		out := j.out(l, b)
		outLo, _ := out.Span(elem)
		var row int64
		for e := b; e < len(j.entries); e += j.batches {
			in := j.entries[e].View
			if slices.Equal(in.Shape, []int64{0}) {
				continue // nothing to move, and legacy where the others have more dims
			}
			inLo, _ := in.Span(elem)
			eachIndex(in.Shape, func(index []int64) {
				from := offset(in, elem, index) - inLo
				moved := slices.Clone(index)
				moved[j.dim] += row
				to := offset(out, elem, moved) - outLo
				for i := range elem {
					dst[b][to+i] = j.src[e][from+i]
				}
			})
			row += in.Shape[j.dim]
		}
	}
	return dst
}

const filler = 0xA5

// newDst makes the slices for all outputs, full of filler.
func (j *job) newDst(l *Layout) [][]byte {
	dst := make([][]byte, j.batches)
	for b := range dst {
		lo, hi := j.out(l, b).Span(l.DType.ElemBytes())
		dst[b] = bytes.Repeat([]byte{filler}, int(hi-lo))
	}
	return dst
}

func (j *job) out(l *Layout, b int) View {
	if j.outs != nil {
		return j.outs[b]
	}
	return View{Shape: l.OutShape(b)}
}

// fillSrc gives every entry memory of random bytes.
func (j *job) fillSrc(rng *rand.Rand) {
	j.src = make([][]byte, len(j.entries))
	for e := range j.entries {
		lo, hi := j.entries[e].Span(j.entries[e].DType.ElemBytes())
		j.src[e] = make([]byte, hi-lo)
		for i := range j.src[e] {
			j.src[e][i] = byte(rng.Uint32())
		}
	}
}

// offset is the place of an element in bytes from element 0.
func offset(v View, elem int64, index []int64) int64 {
	var at int64
	packed := elem
	for i := len(index) - 1; i >= 0; i-- {
		step := packed
		if v.Strides != nil {
			step = v.Strides[i]
		}
		at += index[i] * step
		packed *= v.Shape[i]
	}
	return at
}

// eachIndex calls f with every index of a shape, in row-major order.
func eachIndex(shape []int64, f func([]int64)) {
	if (View{Shape: shape}).empty() {
		return // at once, also where the other extents are huge
	}
	index := make([]int64, len(shape))
	var walk func(dim int)
	walk = func(dim int) {
		if dim == len(shape) {
			f(index)
			return
		}
		for index[dim] = 0; index[dim] < shape[dim]; index[dim]++ {
			walk(dim + 1)
		}
	}
	walk(0)
}

// randomJob makes a small job with everything that can be odd about one.
func randomJob(rng *rand.Rand) *job {
	dtypes := []DType{{CodeUint, 8, 1}, {CodeFloat, 16, 1}, {CodeFloat, 32, 1}, {CodeFloat, 64, 1}, {CodeComplex, 128, 1}, {CodeUint, 8, 3}, {CodeFloat4E2M1FN, 4, 2}}
	dtype := dtypes[rng.IntN(len(dtypes))]
	ndim := 1 + rng.IntN(6)
	shape := make([]int64, ndim)
	for i := range shape {
		shape[i] = 1 + rng.Int64N(4)
		if rng.IntN(40) == 0 {
			shape[i] = 0
		}
	}
	j := &job{dim: rng.IntN(ndim), batches: 1 + rng.IntN(3)}
	keys := 1 + rng.IntN(4)
	for range keys * j.batches {
		shape[j.dim] = rng.Int64N(4)
		v := View{Shape: slices.Clone(shape)}
		switch rng.IntN(8) {
		case 0:
			v.Shape = []int64{0}
			if ndim == 1 {
				v.Shape[0] = 3
			}
		case 1, 2, 3:
			v.Strides = randomStrides(rng, v.Shape, dtype.ElemBytes(), true)
		}
		j.entries = append(j.entries, Entry{View: v, DType: dtype})
	}
	j.fillSrc(rng)
	return j
}

// randomOuts gives the job outputs with strides.
func (j *job) randomOuts(rng *rand.Rand, l *Layout) {
	j.outs = make([]View, j.batches)
	for b := range j.outs {
		j.outs[b].Shape = l.OutShape(b)
		if rng.IntN(4) > 0 {
			j.outs[b].Strides = randomStrides(rng, j.outs[b].Shape, l.DType.ElemBytes(), false)
		}
	}
}

// randomStrides lays a shape out in a random dim order, with gaps, reversed
// dims and, where elements may share memory, expanded dims.
func randomStrides(rng *rand.Rand, shape []int64, elem int64, shared bool) []int64 {
	strides := make([]int64, len(shape))
	next := elem
	for _, i := range rng.Perm(len(shape)) {
		strides[i] = next
		if rng.IntN(4) == 0 {
			strides[i] += rng.Int64N(2 * elem)
		}
		next = strides[i] * max(shape[i], 1)
		switch {
		case shared && rng.IntN(6) == 0:
			strides[i], next = 0, max(next/max(shape[i], 1), elem)
		case shape[i] <= 1:
			strides[i] = rng.Int64N(1000) - 500
		case rng.IntN(4) == 0:
			strides[i] = -strides[i]
		}
	}
	return strides
}

// checkJob plans the job and compares Apply and Execute with the naive copy.
func checkJob(t *testing.T, j *job, l *Layout, p *Plan) {
	t.Helper()
	if err := p.verify(j.entries, j.outs); err != nil {
		t.Fatalf("plan %+v of %+v: %v", p.Segments, *l, err)
	}
	want := j.naive(l)
	keep := make([][]byte, len(j.src))
	for e := range keep {
		keep[e] = slices.Clone(j.src[e])
	}
	got := j.newDst(l)
	Apply(got, j.src, p)
	compare(t, "Apply", got, want)
	got = j.newDst(l)
	p.Execute(got, j.src, 1)
	compare(t, "Execute", got, want)
	for n := 2; n < 6; n++ {
		got = j.newDst(l)
		p.share(p.payload(), n, func(s *Segment, first, end int64) {
			s.move(got[s.Batch], j.src[s.Entry], first, end)
		})
		compare(t, "parallel Execute", got, want)
	}
	compare(t, "entries", j.src, keep)
}

func compare(t *testing.T, what string, got, want [][]byte) {
	t.Helper()
	for i := range want {
		if at := firstDifference(got[i], want[i]); at >= 0 {
			t.Fatalf("%s: slice %d differs at byte %d of %d: got %d, want %d", what, i, at, len(want[i]), got[i][at], want[i][at])
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range b {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func TestRandomJobs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	p := new(Plan)
	for range 3000 {
		j := randomJob(rng)
		l, err := NewLayout(nil, j.batches, j.entries, j.dim)
		if err != nil {
			t.Fatalf("%+v: %v", j.entries, err)
		}
		j.dim = l.Dim
		if rng.IntN(2) == 0 {
			j.randomOuts(rng, l)
		}
		if err := p.Build(l, j.entries, j.outs); err != nil {
			t.Fatalf("%+v into %+v: %v", j.entries, j.outs, err)
		}
		checkJob(t, j, l, p)
	}
}
