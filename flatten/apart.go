package flatten

import (
	"cmp"
	"slices"
	"sort"
)

// Apart tells whether contiguous outputs and contiguous entries share no byte, which is CheckOverlap for the common
// case: nothing but addresses is looked at, and what lies between two outputs is found once for all entries there. It
// is memory to do so, used again from call to call; the zero Apart is ready.
type Apart struct {
	outs []addressRange
}

// An addressRange is the addresses [begin, end).
type addressRange struct{ begin, end uint64 }

// Check reports whether no output shares a byte with another one or with an entry. dst has an address a batch, src one
// an entry; they are those of element 0 of contiguous memory.
func (a *Apart) Check(l *Layout, dst, src []uintptr) bool {
	a.outs = a.outs[:0]
	for b := range dst {
		if n := l.BatchBytes(b); n != 0 {
			a.outs = append(a.outs, addressRange{uint64(dst[b]), uint64(dst[b]) + uint64(n)})
		}
	}
	slices.SortFunc(a.outs, func(s, t addressRange) int { return cmp.Compare(s.begin, t.begin) })
	for i := range a.outs[min(1, len(a.outs)):] {
		if a.outs[i].end > a.outs[i+1].begin {
			return false
		}
	}
	rowBytes, gap := l.RowBytes(), addressRange{}
	for e, rows := range l.Rows {
		begin := uint64(src[e])
		end := begin + uint64(rows*rowBytes)
		if begin == end || begin >= gap.begin && end <= gap.end {
			continue
		}
		if gap = a.gapAt(begin); begin < gap.begin || end > gap.end {
			return false
		}
	}
	return true
}

// gapAt is the addresses between the outputs that begin at or below an address and the next one.
func (a *Apart) gapAt(address uint64) addressRange {
	i := sort.Search(len(a.outs), func(i int) bool { return a.outs[i].begin > address })
	gap := addressRange{0, 1<<64 - 1}
	if i > 0 {
		gap.begin = a.outs[i-1].end
	}
	if i < len(a.outs) {
		gap.end = a.outs[i].begin
	}
	return gap
}
