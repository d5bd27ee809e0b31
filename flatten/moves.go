package flatten

// appendSegment appends the move of a segment into its output at dst.
func (j *inPlaceJob) appendSegment(moves []Move, dst Addr, s *Segment) []Move {
	src := Addr{Absolute, j.places[s.Entry].Addr}.plus(s.Src)
	return j.appendMove(moves, Move{dst.plus(s.Dst), src, s.Bytes, s.Axes})
}

// appendMove appends m, or makes the last move longer where m continues it.
func (j *inPlaceJob) appendMove(moves []Move, m Move) []Move {
	if n := len(moves); n > 0 && moves[n-1].continuedBy(m) && j.inside(m.Dst) && j.inside(m.Src) {
		moves[n-1].Bytes += m.Bytes
		return moves
	}
	return append(moves, m)
}

// continuedBy reports whether next moves the bytes right behind those of m.
func (m *Move) continuedBy(next Move) bool {
	return m.Axes == nil && next.Axes == nil && m.Dst.plus(m.Bytes) == next.Dst && m.Src.plus(m.Bytes) == next.Src
}

// inside reports whether the bytes on both sides of an address are one piece of
// memory for sure: allocations may adjoin by chance, and are better not mixed.
func (j *inPlaceJob) inside(a Addr) bool {
	if a.Base != Absolute {
		return true
	}
	r := j.runAt(a.Off)
	return r < len(j.runs) && j.runs[r].Lo < a.Off
}

// Payload is the number of bytes the move moves, all repeats together.
func (m *Move) Payload() int64 {
	s := m.segment()
	return s.Payload()
}

// segment is the move as a segment whose offsets are those of the addresses.
func (m *Move) segment() Segment {
	return Segment{Src: int64(m.Src.Off), Dst: int64(m.Dst.Off), Bytes: m.Bytes, Axes: m.Axes}
}
