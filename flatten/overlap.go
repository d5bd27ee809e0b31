package flatten

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// Memory is a view at an address.
type Memory struct {
	View
	Addr uint64 // of element 0, which is not the lowest where a stride is negative
}

// Overlap reports whether an element of a and one of b, each of elemBytes
// bytes, share a byte. Interleaved views, such as the even and the odd columns of
// one buffer, share none although their ranges do; Overlap tells them apart
// exactly. The problem is NP-hard in the number of strides that do not nest: a
// pair that is not decided within a few milliseconds counts as overlapping. As for
// View.Span, the views must have passed the checks of NewLayout or Build.
func Overlap(a, b Memory, elemBytes int64) bool {
	pa, pb := a.place(elemBytes), b.place(elemBytes)
	return pa.meets(pb) && overlapExact(a, b, elemBytes)
}

// CheckOverlap makes sure that no output shares a byte with an entry or with
// another output, and returns an *OverlapError that names the batch, and the key
// where an entry is hit. outs are the outputs, one per batch. in are the
// entries, indexed as everywhere. It takes O(entries * log batches) unless
// ranges interleave.
func (l *Layout) CheckOverlap(outs, in []Memory) error {
	places := l.sortedPlaces(outs)
	elem := l.DType.ElemBytes()
	for i := range places {
		b := places[i].index
		if other := places.firstHit(outs, outs[b], i, elem); other >= 0 {
			got := fmt.Sprintf("bytes shared with output %d", min(b, other))
			return &OverlapError{Key: -1, Batch: max(b, other), Got: got, Want: "outputs apart"}
		}
	}
	for e := range in {
		place := in[e].place(elem)
		if other := places.firstHit(outs, in[e], places.before(place.end), elem); other >= 0 {
			got := fmt.Sprintf("bytes shared with output %d", other)
			return &OverlapError{e / l.Batches, e % l.Batches, l.Name(e / l.Batches), got, "outputs apart from entries"}
		}
	}
	return nil
}

// A place is the range of addresses [begin, end) that a view touches.
type place struct {
	begin, end uint64
	reach      uint64 // the highest end of this and all places before it in a sorted list
	index      int
}

func (m Memory) place(elemBytes int64) place {
	lo, hi := m.Span(elemBytes)
	return place{begin: m.Addr + uint64(lo), end: m.Addr + uint64(hi)}
}

// meets reports whether two ranges share an address.
func (p place) meets(q place) bool {
	return p.begin < p.end && q.begin < q.end && p.begin < q.end && q.begin < p.end
}

type places []place

// sortedPlaces are the places of all outputs that have elements, by their begin.
func (l *Layout) sortedPlaces(outs []Memory) places {
	all := make(places, 0, len(outs))
	for b := range outs {
		if p := outs[b].place(l.DType.ElemBytes()); p.begin < p.end {
			p.index = b
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(p, q place) int { return cmp.Compare(p.begin, q.begin) })
	var reach uint64
	for i := range all {
		reach = max(reach, all[i].end)
		all[i].reach = reach
	}
	return all
}

// before is how many places begin below address end.
func (ps places) before(end uint64) int {
	return sort.Search(len(ps), func(i int) bool { return ps[i].begin >= end })
}

// firstHit is the index of an output among the first n places that shares a
// byte with m, or -1. Those n begin below the end of m.
func (ps places) firstHit(outs []Memory, m Memory, n int, elemBytes int64) int {
	at := m.place(elemBytes)
	for i := n - 1; i >= 0 && ps[i].reach > at.begin; i-- {
		if ps[i].meets(at) && overlapExact(outs[ps[i].index], m, elemBytes) {
			return ps[i].index
		}
	}
	return -1
}

// overlapExact decides for two views whose ranges meet. A byte of a lies at
// begin(a) + sum of step*turn + byte of run, with every step positive; with the
// turns of b counted from its other end, a byte of both is a solution of
//
//	sum over a and b of step*turn + byte of run = end(b) - 1 - begin(a)
func overlapExact(a, b Memory, elemBytes int64) bool {
	pa, pb := a.place(elemBytes), b.place(elemBytes)
	var na, nb nest
	na.single(a.View, elemBytes)
	nb.single(b.View, elemBytes)
	terms := append(na.terms(1), nb.terms(1)...)
	terms = append(terms, term{1, uint64(na.bytes - 1 + nb.bytes - 1)})
	return solvable(terms, pb.end-1-pa.begin)
}

// single loads one view as the move onto itself, simplified. Only the steps and
// the run are of use then.
func (n *nest) single(v View, elemBytes int64) {
	n.axes, n.bytes = n.axes[:0], elemBytes
	packed := elemBytes
	for i := len(v.Shape) - 1; i >= 0; i-- {
		step := v.stride(i, packed)
		packed *= v.Shape[i]
		if v.Shape[i] > 1 {
			n.axes = append(n.axes, Axis{v.Shape[i], step, step})
		}
	}
	n.simplify()
}

// terms are the steps of the nest, each with the last of its turns times factor.
func (n *nest) terms(factor uint64) []term {
	terms := make([]term, 0, len(n.axes)+1)
	for _, a := range n.axes {
		if a.DstStep != 0 {
			terms = append(terms, term{uint64(a.DstStep), factor * uint64(a.N-1)})
		}
	}
	return terms
}

// overlapsItself reports whether two elements of the view that single has
// loaded share a byte. Nested steps, each beyond all that is inside it, cannot.
func (n *nest) overlapsItself() bool {
	inside := n.bytes
	for i := len(n.axes) - 1; i >= 0; i-- {
		a := n.axes[i]
		if a.DstStep == 0 || a.DstStep < inside && n.meetsItself(i) {
			return true
		}
		inside += a.DstStep * (a.N - 1)
	}
	return false
}

// meetsItself reports whether two bytes of the view coincide whose turns differ
// on axis i by one or more, and outside it not at all. With d the difference on
// each axis inside, counted from its largest down, and that on axis i too:
//
//	sum of step*d + difference in the run = sum of step*(N-1) + bytes - 1
func (n *nest) meetsItself(i int) bool {
	outer := n.axes[i]
	inside := nest{axes: n.axes[i+1:]}
	terms := append(inside.terms(2), term{uint64(outer.DstStep), uint64(outer.N - 2)})
	terms = append(terms, term{1, uint64(2 * (n.bytes - 1))})
	target := uint64(n.bytes-1) + uint64(outer.DstStep)*uint64(outer.N-1)
	for _, a := range inside.axes {
		target += uint64(a.DstStep) * uint64(a.N-1)
	}
	return solvable(terms, target)
}
