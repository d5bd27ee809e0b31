package flatten

import "fmt"

// maxWatchedBytes bounds the outputs for which verify marks every byte.
const maxWatchedBytes = 1 << 20

// checkInvariants panics with the plan's state if the plan breaks one of the
// promises of the package comment. It does nothing without the build tag
// goflat_invariants.
func (p *Plan) checkInvariants(entries []Entry, outs []View) {
	if !invariants {
		return
	}
	if err := p.verify(entries, outs); err != nil {
		panic(fmt.Sprintf("goflat: broken plan: %v\n%v", err, p))
	}
}

// verify returns what is wrong with the plan, or nil.
func (p *Plan) verify(entries []Entry, outs []View) error {
	watched := p.watch(outs)
	last := -1
	for i := range p.Segments {
		s := &p.Segments[i]
		rank := s.Batch*p.Layout.NumKeys + s.Entry/p.Layout.Batches
		if rank < last {
			return fmt.Errorf("segment %d is out of order", i)
		}
		last = rank
		if err := p.verifySegment(s, entries, &watched[s.Batch]); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	for b, w := range watched {
		if w.written != w.payload {
			return fmt.Errorf("output %d gets %d of its %d bytes", b, w.written, w.payload)
		}
	}
	return nil
}

// verifySegment checks a segment by itself, that it stays inside its entry and
// its output, and that no other has written there.
func (p *Plan) verifySegment(s *Segment, entries []Entry, out *watchedOutput) error {
	if s.Batch != s.Entry%p.Layout.Batches || s.Bytes < 1 || s.Bytes%p.Layout.DType.ElemBytes() != 0 || len(s.Axes) > MaxAxes {
		return fmt.Errorf("batch, bytes or axes of %v", *s)
	}
	for _, a := range s.Axes {
		if a.N < 2 || a.DstStep < 1 {
			return fmt.Errorf("axis %+v", a)
		}
	}
	from, srcEnd, to, dstEnd := s.reach()
	if from < 0 || srcEnd > p.srcBytes(s.Entry, entries) || to < 0 || dstEnd > out.span {
		return fmt.Errorf("out of bounds: reads [%d, %d), writes [%d, %d)", from, srcEnd, to, dstEnd)
	}
	out.written += s.Payload()
	return out.mark(s, s.Axes, s.Dst)
}

// srcBytes is how many bytes entry e spans.
func (p *Plan) srcBytes(e int, entries []Entry) int64 {
	if entries == nil {
		return p.Layout.Rows[e] * p.Layout.RowBytes()
	}
	lo, hi := entries[e].Span(p.Layout.DType.ElemBytes())
	return hi - lo
}

// A watchedOutput is what verify knows about an output.
type watchedOutput struct {
	span    int64  // bytes from its lowest to its highest
	payload int64  // bytes of its elements
	written int64  // bytes that segments have written so far
	marks   []bool // which bytes these are; nil for outputs too large to watch
}

// watch starts to watch all outputs.
func (p *Plan) watch(outs []View) []watchedOutput {
	all := make([]watchedOutput, p.Layout.Batches)
	for b := range all {
		n := p.Layout.BatchBytes(b)
		all[b] = watchedOutput{span: n, payload: n}
		if outs != nil {
			lo, hi := outs[b].Span(p.Layout.DType.ElemBytes())
			all[b].span = hi - lo
		}
		if all[b].span <= maxWatchedBytes {
			all[b].marks = make([]bool, all[b].span)
		}
	}
	return all
}

// mark marks what s writes from to on, and fails on a byte written before.
func (w *watchedOutput) mark(s *Segment, axes []Axis, to int64) error {
	if w.marks == nil {
		return nil
	}
	if len(axes) > 0 {
		for i := range axes[0].N {
			if err := w.mark(s, axes[1:], to+i*axes[0].DstStep); err != nil {
				return err
			}
		}
		return nil
	}
	for i := to; i < to+s.Bytes; i++ {
		if w.marks[i] {
			return fmt.Errorf("byte %d of output %d is written twice", i, s.Batch)
		}
		w.marks[i] = true
	}
	return nil
}
