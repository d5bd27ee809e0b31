package flatten

import (
	"cmp"
	"slices"
)

// A spill is an output that is allocated, and what becomes of the level with it.
type spill struct {
	batch int
	alloc int64 // bytes that it takes
	free  int64 // bytes of the blocks that only it reads, given back when it is full
}

// spillOrder is the order in which spilled outputs are made, those that must be
// early and the others. kept are the blocks that are never given back.
func (j *inPlaceJob) spillOrder(pl *placement, kept, early []bool) (first, late []int) {
	free := make([]int64, j.l.Batches)
	if j.allocates(pl) {
		free = j.freedBy(kept)
	}
	var before, after []spill
	for b, n := range j.outBytes {
		switch s := (spill{b, n, free[b]}); {
		case pl.in[b]:
		case early != nil && early[b]:
			before = append(before, s)
		default:
			after = append(after, s)
		}
	}
	return lowestPeak(before), lowestPeak(after)
}

// lowestPeak orders spills so that the level peaks lowest: first those that
// leave it lower than it was, the smallest first, so that each has the most room;
// then the others, as the same seen backwards in time. This is Johnson's rule,
// and the best there is where no two spills share a block.
func lowestPeak(spills []spill) []int {
	slices.SortStableFunc(spills, func(a, b spill) int {
		shrinkA, shrinkB := a.alloc <= a.free, b.alloc <= b.free
		switch {
		case shrinkA && shrinkB:
			return cmp.Compare(a.alloc, b.alloc)
		case !shrinkA && !shrinkB:
			return cmp.Compare(b.free, a.free)
		case shrinkA:
			return -1
		default:
			return 1
		}
	})
	batches := make([]int, len(spills))
	for i, s := range spills {
		batches[i] = s.batch
	}
	return batches
}

// freedBy is, per batch, the bytes of the blocks that only its entries use. A
// block of several batches counts for none.
func (j *inPlaceJob) freedBy(kept []bool) []int64 {
	const none, several = 0, -1
	j.user = room(j.user, len(j.blocks)) // 1 + the batch
	user := j.user
	b := int32(0)
	for e, p := range j.places {
		if int(b) == j.l.Batches {
			b = 0
		}
		b++
		switch {
		case p.Block < 0 || j.span[e] == 0:
		case user[p.Block] == none:
			user[p.Block] = b
		case user[p.Block] != b:
			user[p.Block] = several
		}
	}
	free := make([]int64, j.l.Batches)
	for i, b := range user {
		if b > 0 && !kept[i] {
			free[b-1] += j.blocks[i].Bytes
		}
	}
	return free
}
