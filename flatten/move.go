package flatten

import "slices"

// move moves the bytes [first, end) of the segment's payload, counted in the
// order in which apply moves them. Either may cut a run in two; first < end.
func (s *Segment) move(dst, src []byte, first, end int64) {
	dst, src = slices.Clip(dst), slices.Clip(src) // or slicing would reach beyond the end
	if len(s.Axes) == 0 {
		copy(dst[s.Dst+first:s.Dst+end], src[s.Src+first:s.Src+end])
		return
	}
	if head := first % s.Bytes; head != 0 {
		tail := min(s.Bytes, head+end-first)
		s.movePart(dst, src, first/s.Bytes, head, tail)
		first += tail - head
	}
	if first == end {
		return
	}
	s.moveRuns(dst, src, first/s.Bytes, end/s.Bytes)
	if tail := end % s.Bytes; tail != 0 {
		s.movePart(dst, src, end/s.Bytes, 0, tail)
	}
}

// movePart moves the bytes [head, tail) of one run.
func (s *Segment) movePart(dst, src []byte, run, head, tail int64) {
	o := s.seek(run)
	copy(dst[o.dst+head:o.dst+tail], src[o.src+head:o.src+tail])
}

// moveRuns moves the runs [first, end), a strip of the innermost axis at a
// time, or a band of several strips where that is faster.
func (s *Segment) moveRuns(dst, src []byte, first, end int64) {
	inner := len(s.Axes) - 1
	turns := s.Axes[inner].N
	move, height := stripFor(s.Bytes), s.bandHeight()
	for o := s.seek(first); first < end; {
		n, rows := min(turns-o.turn[inner], end-first), int64(1)
		if height > 1 && n == turns {
			rows = min(height, s.Axes[inner-1].N-o.turn[inner-1], (end-first)/turns)
		}
		if rows > 1 {
			s.moveBand(dst, src, o, rows, move)
		} else {
			move(dst, src, s.strip(o, n))
		}
		first += n * rows
		o.rewind(inner, s.Axes[inner])
		o.next(s.Axes[:inner], rows)
	}
}

// strip is the next n runs of the innermost axis.
func (s *Segment) strip(o odometer, n int64) strip {
	inner := s.Axes[len(s.Axes)-1]
	return strip{o.dst, o.src, inner.DstStep, inner.SrcStep, n, s.Bytes}
}

// An odometer stands on one run of a segment.
type odometer struct {
	turn     [MaxAxes]int64 // which turn each axis is in
	dst, src int64          // where the run begins
}

// seek is the odometer of a run, counted in the order of Apply.
func (s *Segment) seek(run int64) odometer {
	o := odometer{dst: s.Dst, src: s.Src}
	for i := len(s.Axes) - 1; i >= 0 && run > 0; i-- {
		a := s.Axes[i]
		o.turn[i] = run % a.N
		o.dst += o.turn[i] * a.DstStep
		o.src += o.turn[i] * a.SrcStep
		run /= a.N
	}
	return o
}

// rewind puts axis i back to its first turn.
func (o *odometer) rewind(i int, a Axis) {
	o.dst -= o.turn[i] * a.DstStep
	o.src -= o.turn[i] * a.SrcStep
	o.turn[i] = 0
}

// next goes on by turns of the innermost of axes, at most to its end, from
// where it carries into the axes outside it.
func (o *odometer) next(axes []Axis, turns int64) {
	for i := len(axes) - 1; i >= 0; i-- {
		o.turn[i] += turns
		o.dst += turns * axes[i].DstStep
		o.src += turns * axes[i].SrcStep
		if o.turn[i] < axes[i].N {
			return
		}
		o.rewind(i, axes[i])
		turns = 1
	}
}
