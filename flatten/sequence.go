package flatten

import (
	"slices"
)

// A sequence is a plan in the making: it appends steps, and gives blocks back as
// soon as the last of their entries has been read.
type sequence struct {
	*inPlaceJob
	*InPlace
	pl      *placement
	kept    []bool // per block: an output keeps it
	needed  []bool // per block: as free room for what comes; nil for none
	unread  []int  // per block: entries with bytes that have not been read
	freed   []bool // per block: it has been given back
	pending []int  // blocks to give back
}

// assemble makes the plan of a way.
func (j *inPlaceJob) assemble(w *way) *InPlace {
	s := j.newSequence(w.pl)
	first, late := j.spillOrder(w.pl, s.kept, w.early)
	s.needed = w.needs
	s.releaseAll()
	s.flush()
	s.spillAll(first)
	s.Scratch = w.scratch
	if w.gather {
		s.gather(j.ownMoves(w.pl))
	}
	s.Steps = append(s.Steps, w.steps...)
	s.copyForeign()
	s.readInPlace()
	if s.needed != nil {
		s.needed, s.pending = nil, nil
		s.releaseAll()
	}
	s.flush()
	s.spillAll(late)
	s.finish()
	return s.InPlace
}

// newSequence is a plan without steps.
func (j *inPlaceJob) newSequence(pl *placement) *sequence {
	p := &InPlace{Layout: j.l, Blocks: j.blocks, Places: j.places, Runs: j.runs}
	p.Outs = make([]Addr, j.l.Batches)
	for b := range p.Outs {
		p.Outs[b] = pl.spot(b)
	}
	s := &sequence{inPlaceJob: j, InPlace: p, pl: pl}
	p.Under, s.kept = j.under(pl)
	j.unread, j.freed = room(j.unread, len(j.blocks)), room(j.freed, len(j.blocks))
	s.unread, s.freed = j.unread, j.freed
	for e, at := range j.places {
		if at.Block >= 0 && j.span[e] > 0 {
			s.unread[at.Block]++
		}
	}
	return s
}

// read notes that entry e has been read for good.
func (s *sequence) read(e int) {
	if i := s.inPlaceJob.places[e].Block; i >= 0 && s.span[e] > 0 {
		s.unread[i]--
		s.release(i)
	}
}

// release puts a block on the list of those to give back, if nothing needs it.
func (s *sequence) release(i int) {
	needed := s.needed != nil && s.needed[i]
	if s.unread[i] == 0 && !s.kept[i] && !s.freeRoom[i] && !s.freed[i] && !needed {
		s.pending = append(s.pending, i)
	}
}

// releaseAll releases every block that has no entries left.
func (s *sequence) releaseAll() {
	for i := range s.unread {
		s.release(i)
	}
}

// flush gives back what is pending.
func (s *sequence) flush() {
	if len(s.pending) > 0 {
		slices.Sort(s.pending)
		for _, i := range s.pending {
			s.freed[i] = true
		}
		s.Steps = append(s.Steps, Step{Kind: Free, Blocks: s.pending})
		s.pending = nil
	}
}

// spillAll allocates and fills outputs one after the other.
func (s *sequence) spillAll(batches []int) {
	for _, b := range batches {
		s.Steps = append(s.Steps, Step{Kind: Alloc, Batch: b})
		segments := s.segments(b)
		moves := make([]Move, 0, len(segments))
		for i := range segments {
			moves = s.appendSegment(moves, s.pl.spot(b), &segments[i])
		}
		s.gather(moves)
		s.readBatch(b)
		s.flush()
	}
}

// copyForeign fills the parts of outputs in place whose entries are somebody
// else's or fixed. By now nothing needs what was there.
func (s *sequence) copyForeign() {
	var moves []Move
	for i := range s.move.Segments {
		seg := &s.move.Segments[i]
		if s.pl.in[seg.Batch] && !s.ownEntry[seg.Entry] {
			moves = s.appendSegment(moves, s.pl.spot(seg.Batch), seg)
		}
	}
	s.gather(moves)
}

// gather appends a Gather step, if there is something to move.
func (s *sequence) gather(moves []Move) {
	if len(moves) > 0 {
		s.Steps = append(s.Steps, Step{Kind: Gather, Moves: moves})
	}
}

// readInPlace notes that all outputs in place are complete.
func (s *sequence) readInPlace() {
	for b, in := range s.pl.in {
		if in {
			s.readBatch(b)
		}
	}
}

// readBatch notes that output b is complete.
func (s *sequence) readBatch(b int) {
	for e := b; e < len(s.span); e += s.l.Batches {
		s.read(e)
	}
}

// finish fills in what follows from the steps.
func (s *sequence) finish() {
	s.Growth = s.growth()
	s.ReservedGrowth = s.reservedGrowth()
	s.MovedRows = s.movedRows(s.pl)
	s.Strategy = s.strategy()
	for i := range s.Steps {
		if perm := s.Steps[i].Perm; perm != nil {
			s.Tables += perm.TableBytes()
		}
	}
}

// strategy names what the placement does. A job without bytes is in place.
func (s *sequence) strategy() string {
	var in, spilled int
	for b, n := range s.outBytes {
		switch {
		case s.pl.in[b]:
			in++
		case n > 0:
			spilled++
		}
	}
	switch {
	case spilled == 0:
		return StrategyInPlace
	case in == 0:
		return StrategyStream
	default:
		return StrategyMixed
	}
}

// under finds, per output in place, the blocks it lies on, and which blocks that
// makes kept.
func (j *inPlaceJob) under(pl *placement) (under [][]int, kept []bool) {
	under, kept = make([][]int, j.l.Batches), make([]bool, len(j.blocks))
	short := make([]int64, j.l.Batches)
	for b := range under {
		if pl.in[b] {
			under[b], short[b] = j.blocksUnder(pl.at[b], pl.at[b]+uint64(j.outBytes[b]))
		}
		for _, i := range under[b] {
			kept[i] = true
		}
	}
	if !j.allocates(pl) {
		j.ballast(under, kept, short)
	}
	return under, kept
}

// blocksUnder is the blocks that [lo, hi) lies on, and how many of its bytes are
// on free room.
func (j *inPlaceJob) blocksUnder(lo, hi uint64) (under []int, free int64) {
	first := j.firstBlock(lo)
	last := first
	for last < len(j.byAddr) && j.blocks[j.byAddr[last]].Lo < hi {
		last++
	}
	if first == last {
		return nil, 0
	}
	under = slices.Clone(j.byAddr[first:last])
	for _, i := range under {
		if b := &j.blocks[i]; j.freeRoom[i] {
			free += int64(min(hi, b.Hi) - max(lo, b.Lo))
		}
	}
	slices.Sort(under)
	return under, free
}

// allocates reports whether an output with bytes is spilled. Then blocks are
// better given back than kept for the statistics.
func (j *inPlaceJob) allocates(pl *placement) bool {
	for b, n := range j.outBytes {
		if n > 0 && !pl.in[b] {
			return true
		}
	}
	return false
}

// ballast makes outputs on free room keep blocks that are left over, until they
// keep as many bytes as they lie on free room with.
func (j *inPlaceJob) ballast(under [][]int, kept []bool, short []int64) {
	next := 0
	for b := range under {
		for ; short[b] > 0 && next < len(kept); next++ {
			if n := j.blocks[next].Bytes; n > 0 && !kept[next] {
				under[b] = append(under[b], next)
				kept[next] = true
				short[b] -= n
			}
		}
		slices.Sort(under[b])
	}
}
