package flatten

import "sort"

// findRuns joins writable blocks that adjoin in one range.
func (j *inPlaceJob) findRuns() {
	j.runOf = room(j.runOf, len(j.blocks))
	for i := range j.runOf {
		j.runOf[i] = -1
	}
	for _, i := range j.byAddr {
		b := j.blocks[i]
		last := len(j.runs) - 1
		switch {
		case j.fixed[i]:
			continue
		case last >= 0 && j.runs[last].Hi == b.Lo && j.runs[last].Range == b.Range:
			j.runs[last].Hi = b.Hi
		default:
			j.runs = append(j.runs, Run{b.Lo, b.Hi, b.Range})
			last++
		}
		j.runOf[i] = last
	}
}

// runAt is the index of the run that holds addr.
func (j *inPlaceJob) runAt(addr uint64) int {
	return sort.Search(len(j.runs), func(r int) bool { return j.runs[r].Hi > addr })
}

// gaps are the stretches of the runs that taken, sorted by address, leaves free.
func gaps(runs []Run, taken []stretch) []stretch {
	var free []stretch
	for r, run := range runs {
		at := run.Lo
		next := sort.Search(len(taken), func(i int) bool { return taken[i].hi > run.Lo })
		for _, t := range taken[next:] {
			if t.lo >= run.Hi {
				break
			}
			if at < t.lo {
				free = append(free, stretch{at, t.lo, r})
			}
			at = max(at, t.hi)
		}
		if at < run.Hi {
			free = append(free, stretch{at, run.Hi, r})
		}
	}
	return free
}
