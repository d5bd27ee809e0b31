// Package randjob makes random jobs for tests: entries and outputs of all sizes that
// lie in memory in all ways.
package randjob

import (
	"math/rand/v2"
	"slices"

	"github.com/goflat/goflat/flatten"
)

// A Job is entries, where they go, and the plan for it.
type Job struct {
	Entries []flatten.Entry
	Outs    []flatten.View // nil if all are contiguous
	Plan    *flatten.Plan
}

// elems are the element sizes that occur: bits of one lane.
var elems = []uint8{8, 16, 32, 64, 128}

// New plans random entries into random outputs. About a third of the jobs are plain,
// and about a third of the others' tensors are.
func New(r *rand.Rand) (*Job, error) { return NewOf(r, elems[r.IntN(len(elems))]) }

// NewOf is New for elements of so many bits.
func NewOf(r *rand.Rand, bits uint8) (*Job, error) {
	dtype := flatten.DType{Code: flatten.CodeUint, Bits: bits, Lanes: 1}
	keys, batches, shape := 1+r.IntN(6), 1+r.IntN(4), randomShape(r)
	dim, plain := r.IntN(len(shape)), r.IntN(3) == 0
	j := new(Job)
	for range keys * batches {
		s := slices.Clone(shape)
		s[dim] = max(int64(r.IntN(8))-1, 0)
		v := flatten.View{Shape: s}
		if !plain {
			v = View(r, s, dtype.ElemBytes(), true)
		}
		j.Entries = append(j.Entries, flatten.Entry{View: v, DType: dtype})
	}
	l, err := flatten.NewLayout(nil, batches, j.Entries, dim)
	if err != nil {
		return nil, err
	}
	if !plain && r.IntN(2) == 0 {
		for b := range batches {
			j.Outs = append(j.Outs, View(r, l.OutShape(b), dtype.ElemBytes(), false))
		}
	}
	j.Plan, err = flatten.NewPlan(l, j.Entries, j.Outs)
	return j, err
}

// randomShape is small, except that one extent in some may be long enough for runs
// that a warp copies whole.
func randomShape(r *rand.Rand) []int64 {
	shape := make([]int64, 1+r.IntN(5))
	for i := range shape {
		shape[i] = 1 + int64(r.IntN(5))
	}
	if r.IntN(3) == 0 {
		shape[r.IntN(len(shape))] = 100 + int64(r.IntN(2000))
	}
	return shape
}

// View is a view of a shape whose dims may be permuted, padded, reversed or, if
// repeat, expanded.
func View(r *rand.Rand, shape []int64, elemBytes int64, repeat bool) flatten.View {
	v := flatten.View{Shape: shape}
	if r.IntN(3) == 0 {
		return v
	}
	v.Strides = make([]int64, len(shape))
	order := r.Perm(len(shape))
	if r.IntN(2) == 0 { // keep the order, so that runs stay long
		for i := range order {
			order[i] = len(order) - 1 - i
		}
	}
	step := elemBytes
	for _, dim := range order {
		if r.IntN(4) == 0 {
			step += elemBytes * int64(r.IntN(5))
		}
		v.Strides[dim] = step
		switch n := r.IntN(12); {
		case n == 0:
			v.Strides[dim] = -step
		case n == 1 && repeat:
			v.Strides[dim] = 0
			continue
		}
		step *= max(shape[dim], 1)
	}
	return v
}
