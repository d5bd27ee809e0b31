package flatten

import (
	"cmp"
	"math"
	"slices"
)

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

// fill gives the packed outputs their addresses: in each bin one after the other,
// that first whose lowest entry lies lowest, so that entries that lie in output
// order only slide. batches are the outputs that sizes and in are about.
func (j *inPlaceJob) fill(pl *placement, batches []int, bins []bin, in []int) {
	order := make([]int, 0, len(batches))
	for i := range batches {
		if in[i] >= 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(in[a], in[b]), cmp.Compare(j.lowest[batches[a]], j.lowest[batches[b]]))
	})
	last, at := -1, uint64(0)
	for _, i := range order {
		b := bins[in[i]]
		if in[i] != last {
			last, at = in[i], b.lo
		}
		pl.put(batches[i], at)
		at += uint64(roundUp(j.outBytes[batches[i]], b.step))
	}
}

// findLowest finds the lowest address of each output's own entries. In the order
// of these, outputs read the memory of entries made key by key, or batch by batch,
// without leaving gaps between what has been read.
func (j *inPlaceJob) findLowest() {
	j.lowest = room(j.lowest, j.l.Batches)
	for n := len(j.own) - 1; n >= 0; n-- {
		j.lowest[j.own[n]%j.l.Batches] = j.places[j.own[n]].Addr
	}
}
