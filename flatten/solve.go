package flatten

import (
	"cmp"
	"slices"
)

// A term is step*x with a free x of 0 to last; step is 1 or more.
type term struct {
	step, last uint64
}

// maxSteps bounds the search of solvable; a step takes some nanoseconds.
const maxSteps = 1 << 18

// solvable reports whether the terms can add up to target. Their sum at their
// largest must fit in 64 bits. It changes terms.
//
// It searches the largest step first: what is left for the others bounds x from
// both sides, to one or two values where steps nest, as those of slices of one
// buffer do (the idea of NumPy's mem_overlap.c, where also the proof is that the
// problem is NP-hard). After maxSteps values it gives up and reports true.
func solvable(terms []term, target uint64) bool {
	terms = mergeTerms(terms)
	s := search{terms: terms, most: make([]uint64, len(terms)), steps: maxSteps}
	var most uint64
	for i, t := range terms {
		most += t.step * t.last
		s.most[i] = most
	}
	return s.reaches(len(terms)-1, target)
}

// mergeTerms sorts by step, smallest first, and adds each term whose step is a
// multiple of a smaller one to that, where the two reach all multiples in
// between: 16*x + 8*y with y up to 3 is 8*z with z up to 2*last(x) + 3.
func mergeTerms(terms []term) []term {
	slices.SortFunc(terms, func(a, b term) int { return cmp.Compare(a.step, b.step) })
	merged := terms[:0]
	for _, t := range terms {
		if t.last > 0 && !mergeInto(merged, t) {
			merged = append(merged, t)
		}
	}
	return merged
}

// mergeInto adds t to one of the terms, if there is one that it continues.
func mergeInto(terms []term, t term) bool {
	for i := range terms {
		times := t.step / terms[i].step
		if t.step%terms[i].step == 0 && times-1 <= terms[i].last {
			terms[i].last += times * t.last
			return true
		}
	}
	return false
}

// A search is the state of solvable.
type search struct {
	terms []term   // by step, smallest first
	most  []uint64 // the largest sum of the terms up to each
	steps int      // values of x that may still be tried
}

// reaches reports whether the terms up to and including i can add up to target.
func (s *search) reaches(i int, target uint64) bool {
	if i < 0 {
		return target == 0
	}
	if target > s.most[i] {
		return false
	}
	t := s.terms[i]
	inside := s.most[i] - t.step*t.last
	for x := leastTurns(target, inside, t.step); x <= min(t.last, target/t.step); x++ {
		s.steps--
		if s.steps < 0 || s.reaches(i-1, target-x*t.step) {
			return true
		}
	}
	return false
}

// leastTurns is the least x for which inside covers what step*x leaves of target.
func leastTurns(target, inside, step uint64) uint64 {
	if target <= inside {
		return 0
	}
	return (target-inside-1)/step + 1
}
