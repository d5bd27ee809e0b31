package flatten

// A way is one way to do the job: where the outputs lie, and the steps that bring
// the entries' own memory there.
type way struct {
	pl      *placement
	gather  bool // the entries' own memory gets there in one Gather
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
	for _, try := range c.complete() {
		if w := try(); w != nil && !j.allocates(w.pl) {
			return j.assemble(w)
		}
	}
	best := j.stream()
	for _, try := range []func() *way{c.fresh, c.units, c.largeTable} {
		if w := try(); w != nil {
			best = better(best, j.assemble(w))
		}
	}
	for _, scratch := range []bool{false, true} {
		if w := c.pagesBelow(best.Growth, scratch); w != nil {
			best = better(best, j.assemble(w))
		}
	}
	return best
}

// choices are the ways to do a job.
type choices struct {
	*inPlaceJob
	grid   *grid
	onGrid *placement // the outputs packed on the grid
	packed *placement // the outputs packed anywhere, once it is needed
}

func (j *inPlaceJob) choices() *choices {
	g := j.newGrid()
	return &choices{inPlaceJob: j, grid: g, onGrid: j.packOn(g.bin)}
}

// complete is the ways that may put all outputs in place, the cheapest first.
func (c *choices) complete() []func() *way {
	if c.allocates(c.onGrid) {
		return []func() *way{c.fresh, c.pages}
	}
	return []func() *way{c.few, c.fresh, c.rows, c.pages, c.units}
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

// largeTable is the same with a table that is larger than it should be, but smaller than the
// scratch that pages may take.
func (c *choices) largeTable() *way {
	if !c.o.Cooperative || c.o.TableLimit > 0 || c.allocates(c.onGrid) {
		return nil
	}
	return c.permute(c.mostScratch())
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

// pages moves pages through free room, if all outputs can be packed.
func (c *choices) pages() *way {
	if c.allocates(c.anywhere()) {
		return nil
	}
	return c.pagesWay(c.anywhere(), 0)
}

// pagesBelow moves pages where that grows by less than growth: with scratch, or
// where some outputs are spilled through the room that these leave.
func (c *choices) pagesBelow(growth int64, scratch bool) *way {
	pl := c.anywhere()
	spilled := c.earlyBytes(pl)
	switch {
	case spilled >= growth, !scratch && !c.allocates(pl): // the latter did not work out before
		return nil
	case scratch:
		return c.pagesWithScratch(pl, growth-spilled)
	default:
		return c.pagesWay(pl, 0)
	}
}

// earlyBytes is the bytes of the outputs that are spilled before pages move.
func (c *choices) earlyBytes(pl *placement) (n int64) {
	for b, early := range c.spilledFrom(pl, c.usedRuns(pl)) {
		if early {
			n += c.outBytes[b]
		}
	}
	return n
}

// mostScratch is the scratch that is allowed: at most an eighth of the job.
func (j *inPlaceJob) mostScratch() int64 {
	return min(j.o.ScratchBytes, max(j.l.Bytes()/8, 64*leastPage))
}

// pagesWithScratch moves pages through free room and scratch, if that is at most half of
// the growth of another way.
func (c *choices) pagesWithScratch(pl *placement, growth int64) *way {
	scratch := min(c.mostScratch(), growth/2)
	if scratch < leastPage {
		return nil
	}
	return c.pagesWay(pl, scratch)
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
	j.entries = room(j.entries, len(j.own))
	for i, e := range j.own {
		j.entries[i].lo, j.entries[i].hi = j.extent(e)
	}
	free := gaps(j.runs, j.entries)
	var pl *placement
	for _, align := range []uint64{niceAlign, smallestAlign} {
		pl = j.spilled()
		j.packInto(pl, free, func(s stretch) bin { return anywhere(s, align) })
		if !j.allocates(pl) {
			break
		}
	}
	return &way{pl: pl, gather: true}
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
