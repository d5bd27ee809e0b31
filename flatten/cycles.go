package flatten

import (
	"cmp"
	"math"
	"slices"
)

// cells numbers the units that a permutation moves from or to, densely and by
// address, over all runs, and says what is to become of each. In 4 bytes a cell twice as
// many rows fit into the first-level cache as in 8, and the walk jumps about.
type cells struct {
	from    []uint32 // per cell: 1 + the cell whose unit it gets; 0 for none; and the mark usedCell
	linked  int      // cells that get a unit
	patches []patch  // by cell; the first begins with cell 0
	step    uint32   // from position to position within a patch
	at      []uint32 // room for place
	src     []int    // per segment that moves: the cell of its first byte, before
	dst     []int    // and after
}

// A patch is cells that adjoin in memory, up to the next one.
type patch struct {
	cell int
	pos  uint32 // position of that cell
}

// usedCell marks a cell whose unit some other cell gets.
const usedCell = 1 << 31

// mostUnits bounds permutations: one of so many takes some tenths of a second to
// plan, and 16 MiB of tables.
const mostUnits = 1 << 22

// permutation is the permutation that brings the own entries of the outputs in
// place to where they must be, all starts being on a grid of unit bytes. It is nil
// where nothing moves. ok is false where the positions would not fit in 31 bits,
// or the table would be longer than limit.
func (j *inPlaceJob) permutation(pl *placement, unit, limit int64) (p *Permutation, ok bool) {
	moved := j.findMoving(pl) / unit
	if moved == 0 {
		return nil, true
	}
	if moved > mostUnits || tableBytes(moved) > limit {
		return nil, false
	}
	stretches := j.touched(pl)
	p = &Permutation{Unit: unit, Origin: stretches[0].lo}
	var span uint64
	if p.Grain, span = p.fit(stretches); span/uint64(p.Grain) > math.MaxInt32 || tooMany(stretches, unit) {
		return nil, false
	}
	c := j.number(p, stretches)
	j.link(c, unit)
	p.Pos = make([]uint32, 0, moved+moved/8)
	c.walk(p)
	return p, p.TableBytes() <= limit
}

// findMoving finds the segments of own entries that go to outputs in place and do not
// stay, and how many bytes they have.
func (j *inPlaceJob) findMoving(pl *placement) (bytes int64) {
	j.moving = room(j.moving, len(j.move.Segments))
	for i := range j.move.Segments {
		if s := &j.move.Segments[i]; pl.in[s.Batch] && j.ownEntry[s.Entry] && !j.stays(pl, s) {
			j.moving[i] = true
			bytes += s.Payload()
		}
	}
	return bytes
}

// tooMany reports whether the stretches have more cells than are sensible: many
// more than move, since of an output along another dim than the first all count.
func tooMany(stretches []stretch, unit int64) bool {
	var bytes uint64
	for _, s := range stretches {
		bytes += s.hi - s.lo
	}
	return bytes/uint64(unit) > 4*mostUnits
}

// touched is the stretches that own entries of outputs in place leave or go to, by
// address. what is the segment that leaves, or -1 minus the one that goes there.
func (j *inPlaceJob) touched(pl *placement) []stretch {
	to := j.destinations(pl)
	all := j.all[:0]
	for _, e := range j.own {
		i := j.segmentOf[e]
		if !j.moving[i] {
			continue
		}
		lo, hi := j.extent(e)
		for len(to) > 0 && to[0].lo < lo {
			all = append(all, to[0])
			to = to[1:]
		}
		all = append(all, stretch{lo, hi, i})
	}
	j.all = append(all, to...)
	return j.all
}

// destinations is where own entries go: a stretch for each, or a whole output
// where entries go side by side.
func (j *inPlaceJob) destinations(pl *placement) []stretch {
	to := j.to[:0]
	for _, o := range j.outStretches(pl) {
		for i := j.first[o.what]; i < j.first[o.what+1]; i++ {
			s := &j.move.Segments[i]
			switch {
			case len(s.Axes) > 0:
				to = append(to, stretch{o.lo, o.hi, -1 - i})
			case j.moving[i]:
				at := o.lo + uint64(s.Dst)
				to = append(to, stretch{at, at + uint64(s.Bytes), -1 - i})
			}
		}
	}
	j.to = to
	return to
}

// outStretches is where the outputs in place lie, by address.
func (j *inPlaceJob) outStretches(pl *placement) []stretch {
	var outs []stretch
	for b, in := range pl.in {
		if in {
			outs = append(outs, stretch{pl.at[b], pl.at[b] + uint64(j.outBytes[b]), b})
		}
	}
	slices.SortFunc(outs, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	return outs
}

// fit is the grain for cells that begin somewhere on the grids of the stretches,
// and the distance of the last one from the origin.
func (p *Permutation) fit(stretches []stretch) (grain int64, span uint64) {
	steps := uint64(p.Unit) // any number with the same powers of two in it as the gcd
	for _, s := range stretches {
		steps |= s.lo - p.Origin
		span = max(span, s.hi-p.Origin)
	}
	return grainFor(steps), span
}

// number numbers the cells of the stretches; where stretches meet they share cells.
func (j *inPlaceJob) number(p *Permutation, stretches []stretch) *cells {
	units := divisorOf(uint64(p.Unit))
	c := &j.cells
	c.src, c.dst = room(c.src, len(j.move.Segments)), room(c.dst, len(j.move.Segments))
	var count uint64
	lo, hi := stretches[0].lo, stretches[0].lo // of the piece of memory numbered last
	for _, s := range stretches {
		if s.lo > hi {
			count += units.of(hi - lo)
			lo, hi = s.lo, s.lo
		}
		hi = max(hi, s.hi)
		at := int(count + units.of(s.lo-lo))
		if s.what >= 0 {
			c.src[s.what] = at
			continue
		}
		i := -1 - s.what
		if seg := &j.move.Segments[i]; len(seg.Axes) > 0 {
			at += int(units.of(uint64(seg.Dst)))
		}
		c.dst[i] = at
	}
	count += units.of(hi - lo)
	c.make(p, int(count))
	c.lay(p, stretches)
	return c
}

// make makes n cells without links, and no patches.
func (c *cells) make(p *Permutation, n int) {
	c.from, c.linked, c.patches = room(c.from, n), 0, c.patches[:0]
	c.step = uint32(p.Unit / p.Grain)
}

// lay says where the cells of the stretches lie.
func (c *cells) lay(p *Permutation, stretches []stretch) {
	units, grains := divisorOf(uint64(p.Unit)), divisorOf(uint64(p.Grain))
	cell, hi := 0, uint64(0)
	for _, s := range stretches {
		if lo := max(hi, s.lo); lo < s.hi {
			if lo != hi {
				c.patch(cell, uint32(grains.of(lo-p.Origin)))
			}
			cell += int(units.of(s.hi - lo))
			hi = s.hi
		}
	}
}

// patch begins a patch.
func (c *cells) patch(cell int, pos uint32) {
	c.patches = append(c.patches, patch{cell, pos})
}

// link notes for every cell of an output in place which cell's unit it gets. A
// unit that stays, or comes from elsewhere, is not noted.
func (j *inPlaceJob) link(c *cells, unit int64) {
	units := divisorOf(uint64(unit))
	for i, moves := range j.moving {
		if s := &j.move.Segments[i]; moves {
			c.linkAxes(s.Axes, c.dst[i], c.src[i], int(units.of(uint64(s.Bytes))), unit)
		}
	}
}

// linkAxes links n cells for every turn of the axes.
func (c *cells) linkAxes(axes []Axis, dst, src, n int, unit int64) {
	if len(axes) == 0 {
		c.link(dst, src, n)
		return
	}
	for i := range axes[0].N {
		c.linkAxes(axes[1:], dst+int(i*axes[0].DstStep/unit), src+int(i*axes[0].SrcStep/unit), n, unit)
	}
}

// link links n cells that lie one after the other on both sides.
func (c *cells) link(dst, src, n int) {
	if dst == src {
		return
	}
	to := c.from[dst : dst+n]
	for i := range to {
		to[i] = uint32(src + i + 1)
	}
	c.linked += n
}

// walk appends all chains to the permutation: first the open ones, each from the
// cell whose unit nobody needs, then what is left, which is closed.
func (c *cells) walk(p *Permutation) {
	if c.linked < len(c.from) { // else every cell gives its unit and gets one
		c.walkOpen(p)
	}
	for i, from := range c.from {
		if from&^usedCell != 0 {
			c.follow(p, i)
			p.end(true)
		}
	}
	c.place(p.Pos)
}

// walkOpen appends the open chains.
func (c *cells) walkOpen(p *Permutation) {
	for _, from := range c.from {
		if from &^= usedCell; from != 0 {
			c.from[from-1] |= usedCell
		}
	}
	for i := range c.from {
		if from := c.from[i]; from != 0 && from&usedCell == 0 {
			c.follow(p, i)
			p.end(false)
		}
	}
}

// follow appends the chain from cell start on, by numbers of cells, and unlinks it.
func (c *cells) follow(p *Permutation, start int) {
	pos, from := p.Pos, c.from
	for i := start; i >= 0; {
		pos = append(pos, uint32(i))
		next := int(from[i]&^usedCell) - 1
		from[i] = 0
		if i = next; i == start {
			break
		}
	}
	p.Pos = pos
}

// place turns numbers of cells into positions.
func (c *cells) place(pos []uint32) {
	if len(c.patches) == 1 {
		for i, origin := 0, c.patches[0].pos; i < len(pos); i++ {
			pos[i] = origin + pos[i]*c.step
		}
		return
	}
	at := c.positions()
	for i := range pos {
		pos[i] = at[pos[i]]
	}
}

// positions is the position of each cell.
func (c *cells) positions() []uint32 {
	c.at = room(c.at, len(c.from))
	for i, p := range c.patches {
		end := len(c.from)
		if i+1 < len(c.patches) {
			end = c.patches[i+1].cell
		}
		pos := p.pos
		for cell := p.cell; cell < end; cell++ {
			c.at[cell] = pos
			pos += c.step
		}
	}
	return c.at
}

// end ends the chain that was appended last.
func (p *Permutation) end(closed bool) {
	p.Ends = append(p.Ends, int32(len(p.Pos)))
	p.Closed = append(p.Closed, closed)
}
