package flatten

import (
	"math/bits"
	"slices"
)

// Pages are for jobs on no common grid. Each run is cut into frames of equal
// size, the last one perhaps smaller. Page f is what frame f holds in the end,
// parts of one or more entries. First, in waves, pages are assembled in frames
// that are free: in their own if that is, else in any. A frame becomes free when
// all entry bytes in it have gone into pages. Then the pages that are not at home
// go there in one permutation of frames:
//
//	frames     |a1 a2|b1 b2|a3 b3|     |     want outputs a1 a2 a3, b1 b2 b3
//	wave 1     |a1 a2|b1 b2|a3 b3|a3 b1|     page 1, in the only free frame; page 0 is at home
//	wave 2     |a1 a2|     |b2 b3|a3 b1|     page 2 was waiting for that
//	permute    |a1 a2|a3 b1|b2 b3|     |
//
// Every byte moves at most twice, and none that need not move moves at all unless
// its frame is needed.

// A frame is a page's worth of memory. Pages have the index of the frame that is
// their home.
type frame struct {
	at     Addr
	bytes  int64 // page size; less at the end of a run
	unread int64 // bytes of entries in it that no page has got yet
	stay   int64 // bytes of entries that are at home in it; they are unread until its page is assembled
	page   int   // page that lives here, or noPage
	home   int   // where the page of this frame lives: a frame, or nowhere, or noPage if it has none
	first  int   // its pieces are pieces[first:end]
	end    int
}

const (
	noPage  = -1
	nowhere = -2
)

// A piece is the part of a segment that one page gets: the bytes [first, end) of
// its payload.
type piece struct {
	page       int
	segment    int
	first, end int64
}

// A pager is the state of the page algorithm.
type pager struct {
	*inPlaceJob
	pl      *placement
	size    int64
	frames  []frame // those of the runs, by address, then those of the scratch
	scratch int     // index of the first frame of the scratch
	frameOf []int   // per run: its first frame
	used    []bool  // per run
	pieces  []piece // by page
	waiting int     // pages not assembled
	done    int     // all pages before are assembled
	steps   []Step
	moves   []Move // of the wave
	wave    []int  // pages assembled in the wave
}

// waveBytes is what a wave should move. A GPU moves so much in the time that a
// launch takes by itself, so that smaller waves save nothing by moving less.
const waveBytes = 8 << 20

// The limits of pages. Waves are launches of some microseconds each.
const (
	mostPage  = 1 << 20
	leastPage = 16
	mostPages = 1 << 16
	mostWaves = 1 << 10
)

// pagesWay places outputs anywhere in the runs and moves pages, with up to
// scratch bytes of scratch. It is nil where pages do not work out.
func (j *inPlaceJob) pagesWay(pl *placement, scratch int64) *way {
	if len(j.outStretches(pl)) == 0 {
		return nil
	}
	free := j.freeStretches(pl)
	size, least := j.pageSizes(free, scratch)
	for range pageTries {
		if size < least {
			break
		}
		if j.worthPages(size, framesIn(free, size)+scratch/size) {
			if w := j.pagesOf(pl, size, scratch); w != nil {
				return w
			}
		}
		size /= 4
	}
	return nil
}

// worthPages reports whether room frames are enough for pages of a size: a wave fills
// as many as are free, and so many waves are worth their launches.
func (j *inPlaceJob) worthPages(size, room int64) bool {
	bytes := j.l.Bytes()
	return room > 0 && bytes/size/room <= min(mostWaves, 64+bytes/waveBytes)
}

// pageTries is how many sizes of pages are tried, each a quarter of the last.
const pageTries = 4

// pagesOf is pagesWay with pages of a given size.
func (j *inPlaceJob) pagesOf(pl *placement, size, scratch int64) *way {
	g := j.newPager(pl, size, scratch)
	if g == nil {
		return nil
	}
	begin, waiting := slices.Clone(g.frames), g.waiting
	if j.l.Dim == 0 && g.run(false) {
		return g.way()
	}
	copy(g.frames, begin)
	g.waiting, g.done, g.steps = waiting, 0, nil
	if g.run(true) {
		return g.way()
	}
	return nil
}

// pageSizes is the largest size to try and the least that is worth it, both powers
// of two. Where entries lie in any order each can leave the frames at its ends half
// read. In the usual order, key by key, there is one such frame for each key: twice as
// many should be free at the begin.
func (j *inPlaceJob) pageSizes(free []stretch, scratch int64) (most, least int64) {
	bytes := j.l.Bytes()
	least = max(leastPage, 2*powerBelow(bytes/mostPages))
	most = max(least, min(mostPage, powerBelow(bytes/16)))
	for most > least && framesIn(free, most)+scratch/most < 2*int64(j.l.NumKeys+1) {
		most /= 2
	}
	return most, least
}

// powerBelow is the largest power of two that is n or less, and at least 1.
func powerBelow(n int64) int64 {
	return 1 << (bits.Len64(uint64(max(n, 1))) - 1)
}

// freeStretches is the room in runs that no own entry of an output in place takes.
func (j *inPlaceJob) freeStretches(pl *placement) []stretch {
	var taken []stretch
	for _, e := range j.own {
		if pl.in[e%j.l.Batches] {
			lo, hi := j.extent(e)
			taken = append(taken, stretch{lo, hi, e})
		}
	}
	return gaps(j.runs, taken)
}

// framesIn is how many frames of a size the stretches hold, at most.
func framesIn(free []stretch, size int64) (n int64) {
	for _, s := range free {
		n += int64(s.hi-s.lo) / size
	}
	return n
}

// way is the result.
func (g *pager) way() *way {
	w := &way{pl: g.pl, steps: g.steps, early: g.spilledFrom(g.pl, g.used), needs: make([]bool, len(g.blocks))}
	for i, r := range g.runOf {
		w.needs[i] = r >= 0 && g.used[r]
	}
	if n := len(g.frames) - g.scratch; n > 0 {
		w.scratch = int64(n) * g.size
		w.steps = slices.Concat([]Step{{Kind: AllocScratch}}, w.steps, []Step{{Kind: FreeScratch}})
	}
	return w
}
