package bridge

import (
	"sort"

	"github.com/goflat/goflat/flatten"
)

// A stretch is bytes [lo, hi) of a base.
type stretch struct {
	base   int32
	lo, hi uint64
}

// after says what stands when a step failed: the outputs that have all their bytes, and for each block whether it is
// used up: written to by a step before, or under an output that stands.
//
// An output that no step writes to is its entries, side by side: it is given up rather than they, lest both be handed
// out over the same memory.
func (c *consumption) after(step int) (finished []int, used []bool) {
	steps, outs, blocks := c.plan.Steps, c.outputs(), c.blocks()
	pending, begun := make([]bool, len(c.plan.Outs)), make([]bool, len(c.plan.Outs))
	used = make([]bool, len(c.plan.Blocks))
	for i := range steps {
		of := begun
		if i >= step {
			of = pending
		}
		if steps[i].Kind == flatten.Alloc {
			of[steps[i].Batch] = true
		}
		eachWrite(&steps[i], func(w stretch) { mark(outs, w, of) })
	}
	for i := range steps[:step] {
		eachWrite(&steps[i], func(w stretch) { mark(blocks, w, used) })
	}
	for b := range c.plan.Outs {
		place := c.placeOf(b)
		if pending[b] || !begun[b] && place.lo < place.hi {
			continue
		}
		finished = append(finished, b)
		mark(blocks, place, used)
	}
	return finished, used
}

// placeOf is the memory of an output.
func (c *consumption) placeOf(b int) stretch {
	out := c.plan.Outs[b]
	return stretch{out.Base, out.Off, out.Off + uint64(c.plan.Layout.BatchBytes(b))}
}

// A region is where number id lies.
type region struct {
	stretch
	id int
}

func (c *consumption) outputs() []region {
	var all []region
	for b := range c.plan.Outs {
		all = append(all, region{c.placeOf(b), b})
	}
	return sorted(all)
}

func (c *consumption) blocks() []region {
	var all []region
	for i, block := range c.plan.Blocks {
		all = append(all, region{stretch{flatten.Absolute, block.Lo, block.Hi}, i})
	}
	return sorted(all)
}

func sorted(all []region) []region {
	sort.Slice(all, func(i, j int) bool {
		if all[i].base != all[j].base {
			return all[i].base < all[j].base
		}
		return all[i].lo < all[j].lo
	})
	return all
}

// mark sets the flags of the regions, sorted and apart from each other, that share a byte with w.
func mark(all []region, w stretch, flags []bool) {
	from := sort.Search(len(all), func(i int) bool {
		return all[i].base > w.base || all[i].base == w.base && all[i].hi > w.lo
	})
	for _, r := range all[from:] {
		if r.base != w.base || r.lo >= w.hi {
			return
		}
		flags[r.id] = true
	}
}

// eachWrite calls f with the memory that a step may write, in pieces.
func eachWrite(s *flatten.Step, f func(stretch)) {
	for _, m := range s.Moves {
		hi := m.Dst.Off + uint64(m.Bytes)
		for _, axis := range m.Axes {
			hi += uint64((axis.N - 1) * axis.DstStep)
		}
		f(stretch{m.Dst.Base, m.Dst.Off, hi})
	}
	if p := s.Perm; p != nil {
		for _, v := range p.Pos {
			lo := p.Origin + uint64(v)*uint64(p.Grain)
			f(stretch{flatten.Absolute, lo, lo + uint64(p.Unit)})
		}
	}
}
