package flatten

// move moves the bytes [first, end) of the segment's payload, counted in the
// order in which apply moves them; any of them may be 0 or cut a run in two.
func (s *Segment) move(dst, src []byte, first, end int64) {
	if len(s.Axes) == 0 {
		copy(dst[s.Dst+first:s.Dst+end], src[s.Src+first:s.Src+end])
		return
	}
	if head := first % s.Bytes; head != 0 && first < end {
		tail := min(s.Bytes, head+end-first)
		s.movePart(dst, src, first/s.Bytes, head, tail)
		first += tail - head
	}
	if first >= end {
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

// moveRuns moves the runs [first, end), a strip of the innermost axis at a time.
func (s *Segment) moveRuns(dst, src []byte, first, end int64) {
	inner := len(s.Axes) - 1
	axis := s.Axes[inner]
	move := stripFor(s.Bytes)
	for o := s.seek(first); first < end; o.next(s.Axes[:inner]) {
		n := min(axis.N-o.turn[inner], end-first)
		move(dst, src, strip{o.dst, o.src, axis.DstStep, axis.SrcStep, n, s.Bytes})
		o.rewind(inner, axis)
		first += n
	}
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

// next goes on by one turn of the innermost of axes, which carries into those outside it.
func (o *odometer) next(axes []Axis) {
	for i := len(axes) - 1; i >= 0; i-- {
		o.turn[i]++
		o.dst += axes[i].DstStep
		o.src += axes[i].SrcStep
		if o.turn[i] < axes[i].N {
			return
		}
		o.rewind(i, axes[i])
	}
}
