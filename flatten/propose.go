package flatten

import (
	"cmp"
	"math"
	"slices"
)

// A way is one way to do the job: where the outputs lie, and the steps that bring
// the entries' own memory there.
type way struct {
	pl      *placement
	steps   []Step
	scratch int64
	early   []bool // per batch: spilled before the steps, for they overwrite its entries; nil for none
	needs   []bool // per block: used as free room by the steps, so not given back before them; nil for none
}

// plan chooses how to do the job. Ways on which every output lies in the entries'
// memory come first, by what they cost: hardly anything moves; one Gather into
// free room; one permutation of rows; pages through free room; one permutation of
// smaller units. Only then outputs are spilled, or there is scratch.
func (j *inPlaceJob) plan() *InPlace {
	if j.o.NoAdopt || len(j.own) == 0 {
		return j.stream()
	}
	c := j.choices()
	for _, try := range []func() *way{c.few, c.fresh, c.rows, c.pages, c.units} {
		if w := try(); w != nil && !j.allocates(w.pl) {
			return j.assemble(w)
		}
	}
	best := j.stream()
	for _, try := range []func() *way{c.fresh, c.units, c.pages} {
		if w := try(); w != nil {
			best = better(best, j.assemble(w))
		}
	}
	if w := c.pagesWithScratch(best.Growth); w != nil {
		best = better(best, j.assemble(w))
	}
	return best
}

// choices are the ways to do a job.
type choices struct {
	*inPlaceJob
	grid   *grid
	onGrid *placement // the outputs packed on the grid
	packed *placement // the outputs packed anywhere, once it is needed
	tried  bool       // whether paged is known
	paged  *way       // what pages found
}

func (j *inPlaceJob) choices() *choices {
	g := j.newGrid()
	return &choices{inPlaceJob: j, grid: g, onGrid: j.packOn(g.bin)}
}

// few is nothing to move, on whatever grid, or rows if half of the bytes can stay.
func (c *choices) few() *way {
	if w := c.permute(0); w != nil {
		return w
	}
	if c.movedBytes(c.onGrid) > c.l.Bytes()/2 {
		return nil
	}
	return c.rows()
}

// rows is one permutation of whole rows, if its table is small.
func (c *choices) rows() *way {
	if c.grid.unit < c.blockRowBytes() {
		return nil
	}
	return c.permute(min(c.tableLimit(), defaultTableLimit(c.l.Bytes())))
}

// units is one permutation of the largest units that all starts allow.
func (c *choices) units() *way {
	return c.permute(c.tableLimit())
}

// permute is one permutation on the grid, with a table of up to limit bytes.
func (c *choices) permute(limit int64) *way {
	p, ok := c.permutation(c.onGrid, c.grid.unit, limit)
	if !ok {
		return nil
	}
	w := &way{pl: c.onGrid, early: c.overwritten(c.onGrid)}
	if p != nil {
		w.steps = []Step{{Kind: Permute, Perm: p}}
	}
	return w
}

// pages moves pages through free room.
func (c *choices) pages() *way {
	if !c.tried {
		c.tried, c.paged = true, c.pagesWay(c.anywhere(), 0)
	}
	return c.paged
}

// pagesWithScratch moves pages through free room and scratch: an eighth of the
// job, if that is allowed, and less than the growth of another way.
func (c *choices) pagesWithScratch(growth int64) *way {
	scratch := min(c.o.ScratchBytes, max(c.l.Bytes()/8, 64*leastPage), growth/2)
	if scratch < leastPage {
		return nil
	}
	return c.pagesWay(c.anywhere(), scratch)
}

// anywhere is the outputs packed without regard to a grid.
func (c *choices) anywhere() *placement {
	if c.packed == nil {
		c.packed = c.packOn(anywhere)
	}
	return c.packed
}

// stream is the plan that spills every output.
func (j *inPlaceJob) stream() *InPlace {
	return j.assemble(&way{pl: j.spilled()})
}

// better is the plan that grows less, or else moves fewer rows.
func better(p, q *InPlace) *InPlace {
	if q.Growth < p.Growth || q.Growth == p.Growth && q.MovedRows < p.MovedRows {
		return q
	}
	return p
}

// tableLimit is the most table bytes of a permutation: none where there can be no
// permutation at all.
func (j *inPlaceJob) tableLimit() int64 {
	if !j.o.Cooperative {
		return 0
	}
	if j.o.TableLimit > 0 {
		return j.o.TableLimit
	}
	return defaultTableLimit(j.l.Bytes())
}

// fresh gathers outputs into room where no entry lies.
func (j *inPlaceJob) fresh() *way {
	entries := make([]stretch, len(j.own))
	for i, e := range j.own {
		entries[i].lo, entries[i].hi = j.extent(e)
	}
	free := gaps(j.runs, entries)
	var pl *placement
	for _, align := range []uint64{niceAlign, smallestAlign} {
		pl = j.spilled()
		j.packInto(pl, free, func(s stretch) bin { return anywhere(s, align) })
		if !j.allocates(pl) {
			break
		}
	}
	w := &way{pl: pl}
	if moves := j.ownMoves(pl); len(moves) > 0 {
		w.steps = []Step{{Kind: Gather, Moves: moves}}
	}
	return w
}

// niceAlign is how allocators align tensors, in bytes.
const niceAlign = 512

// ownMoves are the moves of own entries into outputs in place.
func (j *inPlaceJob) ownMoves(pl *placement) []Move {
	moves := make([]Move, 0, len(j.move.Segments))
	for i := range j.move.Segments {
		if s := &j.move.Segments[i]; pl.in[s.Batch] && j.ownEntry[s.Entry] {
			moves = j.appendSegment(moves, pl.spot(s.Batch), s)
		}
	}
	return moves
}

// overwritten tells of each spilled output whether one of its own entries lies
// where an output in place is to be.
func (j *inPlaceJob) overwritten(pl *placement) []bool {
	early := make([]bool, j.l.Batches)
	outs := j.outStretches(pl)
	for _, e := range j.own {
		lo, hi := j.extent(e)
		for len(outs) > 0 && outs[0].hi <= lo {
			outs = outs[1:]
		}
		if len(outs) > 0 && outs[0].lo < hi && !pl.in[e%j.l.Batches] {
			early[e%j.l.Batches] = true
		}
	}
	return early
}

// A binMaker makes the bin of starts that are multiples of align in a stretch of a run.
type binMaker func(s stretch, align uint64) bin

// anywhere makes bins for outputs on no grid.
func anywhere(s stretch, align uint64) bin {
	lo := alignUp(s.lo, align)
	return bin{lo, max(lo, s.hi), int64(align)}
}

// packOn places outputs into the runs: those that need not move, or hardly, stay
// if the others then have room, and starts are aligned if there is room for that.
func (j *inPlaceJob) packOn(bins binMaker) *placement {
	var best *placement
	least := int64(math.MaxInt64)
	for _, align := range []uint64{smallestAlign, j.elemAlign()} {
		toBin := func(s stretch) bin { return bins(s, align) }
		for _, pl := range []*placement{j.anchored(toBin), j.spilled()} {
			if pl == nil {
				continue
			}
			j.packInto(pl, gaps(j.runs, j.outStretches(pl)), toBin)
			if out := j.spilledBytes(pl); out < least {
				best, least = pl, out
			}
			if least == 0 {
				return best
			}
		}
	}
	return best
}

// packInto places the outputs that pl does not place yet into free stretches.
func (j *inPlaceJob) packInto(pl *placement, free []stretch, toBin func(stretch) bin) {
	var batches []int
	var sizes []int64
	for b, n := range j.outBytes {
		if n > 0 && n < maxAddress && !pl.in[b] {
			batches = append(batches, b)
			sizes = append(sizes, n)
		}
	}
	if len(sizes) == 0 {
		return
	}
	least := slices.Min(sizes)
	var bins []bin
	for _, s := range free {
		if int64(s.hi-s.lo) < least {
			continue // most gaps are small; making their bins would take a division each
		}
		if b := toBin(s); int64(b.hi-b.lo) >= least {
			bins = append(bins, b)
		}
	}
	j.fill(pl, batches, bins, pack(sizes, bins))
}

// spilledBytes is the bytes of all outputs that are not in place.
func (j *inPlaceJob) spilledBytes(pl *placement) int64 {
	var n int64
	for b, bytes := range j.outBytes {
		if !pl.in[b] {
			n += bytes
		}
	}
	return n
}

// anchored places the outputs of which more than half of the bytes can stay where
// they are, where two would meet only the lower one. It is nil where there are none.
func (j *inPlaceJob) anchored(toBin func(stretch) bin) *placement {
	var outs []stretch
	for b := range j.l.Batches {
		if at, e := j.majority(b); e >= 0 && j.canLie(at, j.outBytes[b], e, toBin) {
			outs = append(outs, stretch{at, at + uint64(j.outBytes[b]), b})
		}
	}
	if len(outs) == 0 {
		return nil
	}
	slices.SortFunc(outs, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	pl, reach := j.spilled(), uint64(0)
	for _, o := range outs {
		if o.lo >= reach {
			pl.put(o.what, o.lo)
			reach = o.hi
		}
	}
	return pl
}

// majority is the start of output b for which more than half of its own bytes stay,
// and an entry that votes for it: the vote of Boyer and Moore, counted in bytes. If
// no start has so many, it is any that has some, or the entry is -1.
func (j *inPlaceJob) majority(b int) (start uint64, voter int) {
	voter = -1
	var lead int64
	for i := range j.segments(b) {
		s := &j.segments(b)[i]
		if !j.ownEntry[s.Entry] || len(s.Axes) > 0 {
			continue
		}
		vote := j.places[s.Entry].Addr + uint64(s.Src) - uint64(s.Dst)
		switch {
		case lead == 0:
			start, voter, lead = vote, s.Entry, s.Bytes
		case vote == start:
			lead += s.Bytes
		case lead >= s.Bytes:
			lead -= s.Bytes
		default:
			start, voter, lead = vote, s.Entry, s.Bytes-lead
		}
	}
	if lead == 0 {
		return 0, -1
	}
	return start, voter
}

// canLie reports whether an output of n bytes can lie at an address in the run of
// entry e: inside of it, at a start of the bin.
func (j *inPlaceJob) canLie(at uint64, n int64, e int, toBin func(stretch) bin) bool {
	r := j.runOf[j.places[e].Block]
	bin := toBin(stretch{j.runs[r].Lo, j.runs[r].Hi, r})
	end := at + uint64(n)
	return bin.lo <= at && at < end && end <= bin.hi && (at-bin.lo)%uint64(bin.step) == 0
}
