package flatten

import "slices"

// A nest is the loop nest that moves one entry, one axis per dim of its
// tensor, while the planner simplifies it.
type nest struct {
	axes     []Axis // innermost first until flip; steps as the views have them
	src, dst int64  // first byte on either side, from the lowest byte touched
	bytes    int64  // contiguous bytes that one turn of the innermost loop moves
}

// strided plans entries and outputs that may lie in memory in any way.
func (p *Plan) strided(entries []Entry, outs []View) {
	for b := range p.Layout.Batches {
		var out View
		if outs != nil {
			out = outs[b]
		}
		lo, _ := out.Span(p.Layout.DType.ElemBytes())
		p.stridedBatch(b, entries, out, -lo)
	}
}

// stridedBatch plans output b, whose element 0 is dst bytes above its lowest byte.
func (p *Plan) stridedBatch(b int, entries []Entry, out View, dst int64) {
	l := p.Layout
	total := l.BatchRows(b)
	for e := b; e < len(entries); e += l.Batches {
		if l.Rows[e] == 0 || entries[e].empty() {
			continue
		}
		lo, _ := entries[e].Span(l.DType.ElemBytes())
		p.nest.src, p.nest.dst = -lo, dst
		dimStep := p.nest.load(l, entries[e].View, out, total)
		dst += l.Rows[e] * dimStep
		p.nest.simplify()
		p.emit(e, b)
	}
}

// load fills the nest with one axis per dim of the entry that has more than
// one element, and returns the step of Dim in the output. total is the
// output's extent of Dim.
func (n *nest) load(l *Layout, in, out View, total int64) (dimStep int64) {
	n.axes, n.bytes = n.axes[:0], l.DType.ElemBytes()
	srcPacked, dstPacked := n.bytes, n.bytes
	for i := len(in.Shape) - 1; i >= 0; i-- {
		axis := Axis{N: in.Shape[i], SrcStep: in.stride(i, srcPacked), DstStep: out.stride(i, dstPacked)}
		srcPacked *= axis.N
		if i == l.Dim {
			dimStep = axis.DstStep
			dstPacked *= total
		} else {
			dstPacked *= axis.N
		}
		if axis.N > 1 {
			n.axes = append(n.axes, axis)
		}
	}
	return dimStep
}

// simplify turns the nest into fewer, longer runs that move the same bytes,
// and its axes to outermost first.
func (n *nest) simplify() {
	n.flip()
	n.sort()
	n.join()
	slices.Reverse(n.axes)
}

// flip walks axes that the output has backwards from their other end, so that
// every step in the output is positive and two reversed sides become a forward run.
func (n *nest) flip() {
	for i := range n.axes {
		a := &n.axes[i]
		if a.DstStep < 0 {
			n.src += a.SrcStep * (a.N - 1)
			n.dst += a.DstStep * (a.N - 1)
			a.SrcStep, a.DstStep = -a.SrcStep, -a.DstStep
		}
	}
}

// sort puts the smallest step in the output innermost, so that writes go
// upwards and channels-last copied to channels-last is one run. An insertion
// sort: up to 64 axes, nearly always in order already.
func (n *nest) sort() {
	for i := 1; i < len(n.axes); i++ {
		for j := i; j > 0 && n.axes[j].DstStep < n.axes[j-1].DstStep; j-- {
			n.axes[j], n.axes[j-1] = n.axes[j-1], n.axes[j]
		}
	}
}

// join merges axes that continue one another: into the run, as long as both
// sides are dense, and then into the axis inside them.
func (n *nest) join() {
	kept := n.axes[:0]
	for _, a := range n.axes {
		last := len(kept) - 1
		switch {
		case last < 0 && a.SrcStep == n.bytes && a.DstStep == n.bytes:
			n.bytes *= a.N
		case last >= 0 && a.SrcStep == kept[last].SrcStep*kept[last].N && a.DstStep == kept[last].DstStep*kept[last].N:
			kept[last].N *= a.N
		default:
			kept = append(kept, a)
		}
	}
	n.axes = kept
}

// emit appends the nest to the plan as segments of entry e in output b.
func (p *Plan) emit(e, b int) {
	n := &p.nest
	split := max(len(n.axes)-MaxAxes, 0)
	n.smallestFirst(split)
	s := Segment{Entry: e, Batch: b, Src: n.src, Dst: n.dst, Bytes: n.bytes, Axes: p.keep(n.axes[split:]...)}
	p.unroll(n.axes[:split], s)
}

// smallestFirst moves the count axes of the fewest turns to the front.
func (n *nest) smallestFirst(count int) {
	for front := range count {
		least := front
		for i := front + 1; i < len(n.axes); i++ {
			if n.axes[i].N < n.axes[least].N {
				least = i
			}
		}
		a := n.axes[least]
		copy(n.axes[front+1:least+1], n.axes[front:least])
		n.axes[front] = a
	}
}

// unroll appends s once for each turn of axes, for which segments have no room.
func (p *Plan) unroll(axes []Axis, s Segment) {
	if len(axes) == 0 {
		p.Segments = append(p.Segments, s)
		return
	}
	for range axes[0].N {
		p.unroll(axes[1:], s)
		s.Src += axes[0].SrcStep
		s.Dst += axes[0].DstStep
	}
}
