package flatten

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// checkInvariants panics with the plan if it breaks one of the promises of the
// package comment on plans in place. It does nothing without the build tag
// goflat_invariants.
func (p *InPlace) checkInvariants() {
	if !invariants {
		return
	}
	if err := p.verify(); err != nil {
		panic(fmt.Sprintf("goflat: broken plan in place: %v\n%v", err, p))
	}
}

// verify returns what is wrong with the plan, or nil. Which byte comes from
// where is for the tests, which run the steps.
func (p *InPlace) verify() error {
	return errors.Join(p.verifyOuts(), p.verifyBlocks(), p.verifySteps(), p.verifyNumbers())
}

// A stretch is the addresses [lo, hi), with something to tell it by.
type stretch struct {
	lo, hi uint64
	what   int
}

// overlapping sorts stretches and returns two that share a byte, if any do.
func overlapping(all []stretch) (a, b stretch, found bool) {
	slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	for i := 1; i < len(all); i++ {
		if all[i-1].hi > all[i].lo {
			return all[i-1], all[i], true
		}
	}
	return a, b, false
}

// verifyOuts checks that outputs in place lie inside one run each, apart from
// one another, on blocks that they keep.
func (p *InPlace) verifyOuts() error {
	var outs []stretch
	blocks := p.sortedBlocks()
	for b, out := range p.Outs {
		if out.Base != Absolute {
			if out != (Addr{int32(b), 0}) || p.Under[b] != nil {
				return fmt.Errorf("spilled output %d is at %v and keeps %v", b, out, p.Under[b])
			}
			continue
		}
		s := stretch{out.Off, out.Off + uint64(p.Layout.BatchBytes(b)), b}
		if elem := uint64(p.Layout.DType.ElemBytes()); !p.inRun(s.lo, s.hi) || s.lo%min(elem&-elem, smallestAlign) != 0 {
			return fmt.Errorf("output %d at [%#x, %#x) is in no run, or not aligned", b, s.lo, s.hi)
		}
		for _, under := range blocks.within(s.lo, s.hi) {
			if _, kept := slices.BinarySearch(p.Under[b], under.what); !kept {
				return fmt.Errorf("output %d does not keep block %d", b, under.what)
			}
		}
		outs = append(outs, s)
	}
	if a, b, found := overlapping(outs); found {
		return fmt.Errorf("outputs %d and %d share bytes", a.what, b.what)
	}
	return nil
}

// sortedBlocks is the blocks with bytes, by address.
func (p *InPlace) sortedBlocks() stretches {
	all := make(stretches, 0, len(p.Blocks))
	for i, b := range p.Blocks {
		if b.Lo < b.Hi {
			all = append(all, stretch{b.Lo, b.Hi, i})
		}
	}
	slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	return all
}

// stretches are apart, and sorted by address.
type stretches []stretch

// within is those that have a byte of [lo, hi).
func (all stretches) within(lo, hi uint64) stretches {
	first := sort.Search(len(all), func(i int) bool { return all[i].hi > lo })
	end := sort.Search(len(all), func(i int) bool { return all[i].lo >= hi })
	return all[first:max(first, end)]
}

// inRun reports whether [lo, hi) lies in one run.
func (p *InPlace) inRun(lo, hi uint64) bool {
	r := sort.Search(len(p.Runs), func(r int) bool { return p.Runs[r].Hi > lo })
	return r < len(p.Runs) && p.Runs[r].Lo <= lo && hi <= p.Runs[r].Hi
}

// verifyBlocks checks that each block with entries is kept or given back, and not both.
func (p *InPlace) verifyBlocks() error {
	kept, freed := make([]bool, len(p.Blocks)), make([]int, len(p.Blocks))
	for _, under := range p.Under {
		for _, i := range under {
			kept[i] = true
		}
	}
	for s := range p.Steps {
		for _, i := range p.Steps[s].Blocks {
			freed[i]++
		}
	}
	used := make([]bool, len(p.Blocks))
	for e, at := range p.Places {
		if at.Block >= 0 && p.Layout.Rows[e] > 0 {
			used[at.Block] = true
		}
	}
	for i := range p.Blocks {
		if freed[i] > 1 || kept[i] && freed[i] > 0 || (used[i] || p.Blocks[i].Bytes > 0) && !kept[i] && freed[i] == 0 {
			return fmt.Errorf("block %d: kept %v, given back %d times", i, kept[i], freed[i])
		}
	}
	return nil
}

// verifySteps checks each step by itself, and the life of what steps allocate
// and give back.
func (p *InPlace) verifySteps() error {
	made := make([]bool, p.Layout.Batches)
	gone := make([]bool, len(p.Blocks))
	blocks := p.sortedBlocks()
	scratch := false
	for i := range p.Steps {
		s := &p.Steps[i]
		switch s.Kind {
		case Alloc:
			made[s.Batch] = true
		case AllocScratch, FreeScratch:
			scratch = s.Kind == AllocScratch
		case Free:
			for _, b := range s.Blocks {
				gone[b] = true
			}
		}
		if err := p.verifyStep(s, made, scratch, func(t touch) error { return blocks.alive(t, gone) }); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// verifyStep checks what a step reads and writes.
func (p *InPlace) verifyStep(s *Step, made []bool, scratch bool, alive func(t touch) error) error {
	reads, writes := s.touches()
	for n, all := range [][]touch{reads, writes} {
		for _, t := range all {
			if t.base >= 0 && (!made[t.base] || t.hi > uint64(p.Layout.BatchBytes(int(t.base)))) {
				return fmt.Errorf("%v is outside of its output", t)
			}
			if t.base == Scratch && (!scratch || t.hi > uint64(p.Scratch)) {
				return fmt.Errorf("%v is outside of the scratch", t)
			}
			if t.base == Absolute && n == 1 && !p.inRun(t.lo, t.hi) {
				return fmt.Errorf("%v is written outside of all runs", t)
			}
			if err := alive(t); err != nil {
				return err
			}
		}
	}
	if s.runs() <= maxWatchedRuns {
		return apart(reads, writes)
	}
	return nil
}

// maxWatchedRuns bounds the steps of which verify looks at every run of a move.
const maxWatchedRuns = 1 << 16

// runs is how many runs of contiguous bytes or units the step moves.
func (s *Step) runs() (n int64) {
	if s.Perm != nil {
		return int64(len(s.Perm.Pos))
	}
	for i := range s.Moves {
		n += s.Moves[i].Payload() / s.Moves[i].Bytes
	}
	return n
}

// alive checks that no block under t has been given back.
func (all stretches) alive(t touch, gone []bool) error {
	if t.base != Absolute {
		return nil
	}
	for _, b := range all.within(t.lo, t.hi) {
		if gone[b.what] {
			return fmt.Errorf("%v is in block %d, which is given back", t, b.what)
		}
	}
	return nil
}

// A touch is bytes that a step reads or writes.
type touch struct {
	base   int32
	lo, hi uint64
}

// touches are the bytes that a step reads and those it writes, for a permutation
// all it writes. Of too many moves it is also what lies between their runs, and of a
// permutation of too many units nothing.
func (s *Step) touches() (reads, writes []touch) {
	many := s.runs() > maxWatchedRuns
	for i := range s.Moves {
		m := &s.Moves[i]
		if many {
			seg := m.segment()
			from, srcEnd, to, dstEnd := seg.reach()
			reads = append(reads, touch{m.Src.Base, uint64(from), uint64(srcEnd)})
			writes = append(writes, touch{m.Dst.Base, uint64(to), uint64(dstEnd)})
			continue
		}
		m.eachRun(m.Axes, 0, 0, func(dst, src uint64) {
			reads = append(reads, touch{m.Src.Base, src, src + uint64(m.Bytes)})
			writes = append(writes, touch{m.Dst.Base, dst, dst + uint64(m.Bytes)})
		})
	}
	if s.Perm != nil && !many {
		for _, v := range s.Perm.Pos {
			at := s.Perm.address(v)
			writes = append(writes, touch{Absolute, at, at + uint64(s.Perm.Unit)})
		}
	}
	return reads, writes
}

// eachRun calls f with the offsets of every run of the move.
func (m *Move) eachRun(axes []Axis, dst, src int64, f func(dst, src uint64)) {
	if len(axes) == 0 {
		f(m.Dst.Off+uint64(dst), m.Src.Off+uint64(src))
		return
	}
	for i := range axes[0].N {
		m.eachRun(axes[1:], dst+i*axes[0].DstStep, src+i*axes[0].SrcStep, f)
	}
}

// apart checks that no byte is written twice, nor read and written.
func apart(reads, writes []touch) error {
	const read, written = 0, 1
	for _, base := range bases(writes) {
		var all []stretch
		for kind, touches := range [][]touch{reads, writes} {
			for _, t := range touches {
				if t.base == base {
					all = append(all, stretch{t.lo, t.hi, kind})
				}
			}
		}
		slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
		var reach [2]uint64
		for _, s := range all {
			if s.lo < reach[written] || s.what == written && s.lo < reach[read] {
				return fmt.Errorf("a byte at %d of base %d is written and used", s.lo, base)
			}
			reach[s.what] = max(reach[s.what], s.hi)
		}
	}
	return nil
}

// bases are the bases that occur.
func bases(touches []touch) []int32 {
	var all []int32
	for _, t := range touches {
		if !slices.Contains(all, t.base) {
			all = append(all, t.base)
		}
	}
	return all
}

// verifyNumbers walks the steps again for what they cost.
func (p *InPlace) verifyNumbers() error {
	if got := p.growth(); p.Growth != got || p.ReservedGrowth < p.reservedGrowth() {
		return fmt.Errorf("growth %d reserved %d, the steps say %d and %d", p.Growth, p.ReservedGrowth, got, p.reservedGrowth())
	}
	return nil
}
