package flatten

import "fmt"

// maxTiledBytes bounds the outputs for which checkInvariants marks every byte.
const maxTiledBytes = 1 << 20

// checkInvariants panics with the plan's state if the plan breaks one of the
// promises of the package comment. It does nothing without the build tag
// goflat_invariants.
func (p *Plan) checkInvariants(entries []Entry, outs []View) {
	if !invariants {
		return
	}
	if err := p.verify(entries, outs); err != nil {
		panic(fmt.Sprintf("goflat: broken plan: %v\nlayout: %+v\nsegments: %+v", err, *p.Layout, p.Segments))
	}
}

// verify returns what is wrong with the plan, or nil.
func (p *Plan) verify(entries []Entry, outs []View) error {
	payload := make([]int64, p.Layout.Batches)
	tiles := p.newTiles(outs)
	last := -1
	for i := range p.Segments {
		s := &p.Segments[i]
		rank := s.Batch*p.Layout.NumKeys + s.Entry/p.Layout.Batches
		if rank < last {
			return fmt.Errorf("segment %d is out of order", i)
		}
		last = rank
		if err := p.verifySegment(s, entries, outs); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		payload[s.Batch] += s.Payload()
		if err := tiles[s.Batch].mark(s, s.Axes, s.Dst); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	for b, n := range payload {
		if n != p.Layout.BatchBytes(b) {
			return fmt.Errorf("output %d gets %d of its %d bytes", b, n, p.Layout.BatchBytes(b))
		}
	}
	return nil
}

// verifySegment checks a segment by itself: its numbers, and that it stays
// inside its entry and its output.
func (p *Plan) verifySegment(s *Segment, entries []Entry, outs []View) error {
	if s.Batch != s.Entry%p.Layout.Batches || s.Bytes < 1 || s.Bytes%p.Layout.DType.ElemBytes() != 0 || len(s.Axes) > MaxAxes {
		return fmt.Errorf("batch, bytes or axes of %+v", *s)
	}
	from, srcEnd, to, dstEnd := s.reach()
	if from < 0 || srcEnd > p.srcBytes(s.Entry, entries) || to < 0 || dstEnd > p.dstBytes(s.Batch, outs) {
		return fmt.Errorf("out of bounds: reads [%d, %d), writes [%d, %d)", from, srcEnd, to, dstEnd)
	}
	for _, a := range s.Axes {
		if a.N < 2 || a.DstStep < 1 {
			return fmt.Errorf("axis %+v", a)
		}
	}
	return nil
}

// reach is the range of bytes that the segment reads and the one it writes.
func (s *Segment) reach() (from, srcEnd, to, dstEnd int64) {
	from, srcEnd, to, dstEnd = s.Src, s.Src+s.Bytes, s.Dst, s.Dst+s.Bytes
	for _, a := range s.Axes {
		from += min(a.SrcStep*(a.N-1), 0)
		srcEnd += max(a.SrcStep*(a.N-1), 0)
		dstEnd += a.DstStep * (a.N - 1)
	}
	return from, srcEnd, to, dstEnd
}

// srcBytes is how many bytes entry e spans.
func (p *Plan) srcBytes(e int, entries []Entry) int64 {
	if entries == nil {
		return p.Layout.Rows[e] * p.Layout.RowBytes()
	}
	lo, hi := entries[e].Span(p.Layout.DType.ElemBytes())
	return hi - lo
}

// dstBytes is how many bytes output b spans.
func (p *Plan) dstBytes(b int, outs []View) int64 {
	if outs == nil {
		return p.Layout.BatchBytes(b)
	}
	lo, hi := outs[b].Span(p.Layout.DType.ElemBytes())
	return hi - lo
}

// tiles marks which bytes of an output have been written; empty for outputs
// that are too large to watch.
type tiles []bool

func (p *Plan) newTiles(outs []View) []tiles {
	all := make([]tiles, p.Layout.Batches)
	for b := range all {
		if n := p.dstBytes(b, outs); n <= maxTiledBytes {
			all[b] = make(tiles, n)
		}
	}
	return all
}

// mark marks what s writes from to on, and fails on a byte written before.
func (t tiles) mark(s *Segment, axes []Axis, to int64) error {
	if t == nil {
		return nil
	}
	if len(axes) > 0 {
		for i := range axes[0].N {
			if err := t.mark(s, axes[1:], to+i*axes[0].DstStep); err != nil {
				return err
			}
		}
		return nil
	}
	for i := to; i < to+s.Bytes; i++ {
		if t[i] {
			return fmt.Errorf("byte %d of output %d is written twice", i, s.Batch)
		}
		t[i] = true
	}
	return nil
}
