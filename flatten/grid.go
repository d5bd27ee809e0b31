package flatten

// A grid is starts at equal distances in each run, such that every entry in the
// run begins at one of them and all entries are whole numbers of units.
type grid struct {
	unit  int64
	first []uint64 // per run: its lowest start
}

// smallestAlign is what outputs are aligned to, in bytes, where there is room for
// that: the widest access of a kernel.
const smallestAlign = 16

// elemAlign is what outputs are always aligned to: the power of two in the size
// of an element.
func (j *inPlaceJob) elemAlign() uint64 {
	n := uint64(j.l.DType.ElemBytes())
	return min(n&-n, smallestAlign)
}

// newGrid is the coarsest grid there is.
func (j *inPlaceJob) newGrid() *grid {
	g := &grid{first: make([]uint64, len(j.runs))}
	var unit uint64
	inner := j.blockRowBytes()
	last := int64(-1)
	for _, rows := range j.l.Rows {
		if rows != last {
			unit = gcd(uint64(rows*inner), unit)
		}
		last = rows
	}
	seen := make([]bool, len(j.runs))
	for _, e := range j.own {
		r := j.runOf[j.places[e].Block]
		if !seen[r] {
			seen[r], g.first[r] = true, j.places[e].Addr
		}
		unit = gcd(j.places[e].Addr-g.first[r], unit)
	}
	for r := range g.first {
		if !seen[r] {
			g.first[r] = alignUp(j.runs[r].Lo, smallestAlign)
		}
	}
	g.refine(max(int64(unit), 1), j.runs)
	return g
}

// refine makes unit, which divides the one there was, the grid's unit.
func (g *grid) refine(unit int64, runs []Run) {
	g.unit = unit
	for r := range g.first {
		if g.first[r] >= runs[r].Lo {
			g.first[r] -= (g.first[r] - runs[r].Lo) / uint64(unit) * uint64(unit)
		}
	}
}

// blockRowBytes is the bytes of a row that lie together: all of it for dim 0.
func (j *inPlaceJob) blockRowBytes() int64 {
	n, _ := product(j.l.RowShape[j.l.Dim:], j.l.DType.ElemBytes())
	return n
}

// bin is the starts in a stretch of run what that are on the grid and multiples
// of align.
func (g *grid) bin(s stretch, align uint64) bin {
	unit := uint64(g.unit)
	first := g.first[s.what]
	if first < s.lo {
		first += (s.lo - first + unit - 1) / unit * unit
	} else {
		first -= (first - s.lo) / unit * unit
	}
	b := bin{first, max(first, s.hi), g.unit}
	b.align(align)
	return b
}

// align leaves only the starts that are multiples of align, a power of two; if
// there are none, the bin is empty.
func (b *bin) align(align uint64) {
	turns := align / gcd(uint64(b.step), align)
	for i := range turns {
		lo := b.lo + i*uint64(b.step)
		if step, ok := mul(b.step, int64(turns)); ok && lo%align == 0 && lo < b.hi {
			b.lo, b.step = lo, step
			return
		}
	}
	b.hi = b.lo
}

// gcd is the greatest common divisor, that of 0 and a being a.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// alignUp is the least multiple of align, a power of two, that is addr or more.
func alignUp(addr, align uint64) uint64 {
	return (addr + align - 1) &^ (align - 1)
}
