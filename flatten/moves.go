package flatten

// appendMove appends the move of a segment into its output at dst.
func (j *inPlaceJob) appendMove(moves []Move, dst Addr, s *Segment) []Move {
	src := Addr{Absolute, j.places[s.Entry].Addr}.plus(s.Src)
	return appendMove(moves, Move{dst.plus(s.Dst), src, s.Bytes, s.Axes})
}

// appendMove appends m, or makes the last move longer where m continues it.
func appendMove(moves []Move, m Move) []Move {
	if n := len(moves); n > 0 && moves[n-1].continuedBy(m) {
		moves[n-1].Bytes += m.Bytes
		return moves
	}
	return append(moves, m)
}

// continuedBy reports whether next moves the bytes right behind those of m.
func (m *Move) continuedBy(next Move) bool {
	return m.Axes == nil && next.Axes == nil && m.Dst.plus(m.Bytes) == next.Dst && m.Src.plus(m.Bytes) == next.Src
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
