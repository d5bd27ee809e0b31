package flatten

import (
	"cmp"
	"math"
	"slices"
)

// A bin is room for outputs: an output may start at lo and at every step from it,
// and ends at hi at most; lo <= hi. It takes up whole steps.
type bin struct {
	lo, hi uint64
	step   int64
}

// packSteps bounds the search of pack; looking at one bin is a step and takes
// about a nanosecond. The first answer may take longer, up to the many packMostSteps
// of a job of thousands of outputs and thousands of bins, where it leaves out the rest.
const (
	packSteps     = 1 << 16
	packMostSteps = 1 << 27
)

// pack puts items of the given sizes into bins and returns the bin of each, -1
// for an item that is left out. Few bytes are left out: the search tries the
// largest item first, in the fullest bin that has room (best-fit decreasing, which
// is its first answer), then in others, then leaving it out, until nothing better
// can be found or packSteps are spent. The problem is NP-hard.
func pack(sizes []int64, bins []bin) []int {
	p := packing{sizes: sizes, bins: bins, least: math.MaxInt64, steps: packSteps}
	p.order = make([]int, len(sizes))
	for i, n := range sizes {
		p.order[i] = i
		p.rest += n
	}
	slices.SortStableFunc(p.order, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	p.room = make([]int64, len(bins))
	for i, b := range bins {
		p.room[i] = int64(b.hi - b.lo)
		p.space += p.room[i]
	}
	p.in = make([]int, len(sizes))
	p.best = make([]int, len(sizes))
	p.try(0, 0)
	return p.best
}

// A packing is the state of pack.
type packing struct {
	sizes []int64
	bins  []bin
	order []int   // items, largest first
	room  []int64 // left in each bin
	space int64   // left in all bins
	rest  int64   // bytes of the items not yet tried
	in    []int   // bin of each item tried, -1 for none
	best  []int   // in, where it left out least
	least int64   // bytes that best leaves out
	steps int
}

// try packs the items from order[i] on, out bytes being left out already.
func (p *packing) try(i int, out int64) {
	if out+max(0, p.rest-p.space) >= p.least {
		return
	}
	if i == len(p.order) {
		p.least = out
		copy(p.best, p.in)
		return
	}
	item := p.order[i]
	size := p.sizes[item]
	p.rest -= size
	for bin := p.tightest(size, -1); bin >= 0 && p.open(); bin = p.tightest(size, bin) {
		p.put(i, item, bin, out)
	}
	if p.open() {
		p.in[item] = -1
		p.try(i+1, out+size)
	}
	p.rest += size
}

// open reports whether there is anything left to search, and time for it. The
// first answer is always found.
func (p *packing) open() bool {
	return p.least == math.MaxInt64 || p.least > 0 && p.steps > 0
}

// put goes on with an item in a bin.
func (p *packing) put(i, item, bin int, out int64) {
	taken := roundUp(p.sizes[item], p.bins[bin].step)
	p.in[item] = bin
	p.room[bin] -= taken
	p.space -= taken
	p.try(i+1, out)
	p.room[bin] += taken
	p.space += taken
}

// tightest is the bin of the least room that has enough for size, among those
// that come after a bin in this order, -1 for all; or -1 if there is none. Of bins
// alike one is as good as another.
func (p *packing) tightest(size int64, after int) int {
	p.steps -= len(p.room)
	found := -1
	if p.steps < -packMostSteps {
		return found
	}
	for i, room := range p.room {
		if found >= 0 && room >= p.room[found] || room < roundUp(size, p.bins[i].step) {
			continue
		}
		if after < 0 || room > p.room[after] || room == p.room[after] && i > after && p.bins[i].step != p.bins[after].step {
			found = i
		}
	}
	return found
}
