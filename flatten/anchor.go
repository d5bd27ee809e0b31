package flatten

import (
	"cmp"
	"slices"
)

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
