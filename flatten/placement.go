package flatten

// A placement says where the outputs are to lie.
type placement struct {
	at []uint64 // per batch: address of an output in place
	in []bool   // per batch: whether it is in place; an output without bytes never is
}

// spilled is the placement with nothing in place.
func (j *inPlaceJob) spilled() *placement {
	return &placement{at: make([]uint64, j.l.Batches), in: make([]bool, j.l.Batches)}
}

// put places output b at an address.
func (pl *placement) put(b int, at uint64) {
	pl.at[b], pl.in[b] = at, true
}

// spot is where output b lies.
func (pl *placement) spot(b int) Addr {
	if pl.in[b] {
		return Addr{Absolute, pl.at[b]}
	}
	return Addr{int32(b), 0}
}

// stays reports whether a segment's bytes are already where they must be.
func (j *inPlaceJob) stays(pl *placement, s *Segment) bool {
	return pl.in[s.Batch] && len(s.Axes) == 0 && j.ownEntry[s.Entry] &&
		j.places[s.Entry].Addr+uint64(s.Src) == pl.at[s.Batch]+uint64(s.Dst)
}

// movedBytes is how many bytes of the entries' own memory do not stay, all
// outputs together.
func (j *inPlaceJob) movedBytes(pl *placement) int64 {
	var n int64
	for i := range j.move.Segments {
		if s := &j.move.Segments[i]; !j.stays(pl, s) {
			n += s.Payload()
		}
	}
	return n
}

// movedRows is how many rows do not stay.
func (j *inPlaceJob) movedRows(pl *placement) int64 {
	var n int64
	for i := range j.move.Segments {
		s := &j.move.Segments[i]
		last := i+1 == len(j.move.Segments) || j.move.Segments[i+1].Entry != s.Entry
		if last && !j.stays(pl, s) {
			n += j.l.Rows[s.Entry]
		}
	}
	return n
}
