package flatten

import (
	"math/bits"
	"slices"
	"sort"
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
		if framesIn(free, size)+scratch/size > 0 {
			if w := j.pagesOf(pl, size, scratch); w != nil {
				return w
			}
		}
		size /= 4
	}
	return nil
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
	g.waiting, g.steps = waiting, nil
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

// newPager cuts runs into frames and segments into pieces. It is nil where there
// are too many of them.
func (j *inPlaceJob) newPager(pl *placement, size, scratch int64) *pager {
	g := &pager{inPlaceJob: j, pl: pl, size: size}
	g.findUsed()
	if !g.cutRuns() || !g.cutSegments() {
		return nil
	}
	g.scratch = len(g.frames)
	for off := int64(0); off+size <= scratch; off += size {
		g.frames = append(g.frames, frame{at: Addr{Scratch, uint64(off)}, bytes: size, page: noPage, home: noPage})
	}
	return g
}

// findUsed finds the runs whose frames may be used: those that an output in place
// comes from or goes to, and those without entries.
func (g *pager) findUsed() {
	g.used = make([]bool, len(g.runs))
	foreign := make([]bool, len(g.runs))
	for _, e := range g.own {
		r := g.runOf[g.places[e].Block]
		if g.pl.in[e%g.l.Batches] {
			g.used[r] = true
		} else {
			foreign[r] = true
		}
	}
	for _, o := range g.outStretches(g.pl) {
		g.used[g.runAt(o.lo)] = true
	}
	for r := range g.used {
		g.used[r] = g.used[r] || !foreign[r]
	}
}

// runAt is the index of the run that holds addr.
func (j *inPlaceJob) runAt(addr uint64) int {
	return sort.Search(len(j.runs), func(r int) bool { return j.runs[r].Hi > addr })
}

// cutRuns makes the frames.
func (g *pager) cutRuns() bool {
	g.frameOf = make([]int, len(g.runs))
	count := uint64(0)
	for r, run := range g.runs {
		if g.used[r] {
			count += (run.Hi-run.Lo)/uint64(g.size) + 1
		}
	}
	if count > 16*mostPages {
		return false
	}
	g.frames = make([]frame, 0, count)
	for r, run := range g.runs {
		g.frameOf[r] = len(g.frames)
		if !g.used[r] {
			continue
		}
		for lo := run.Lo; lo < run.Hi; lo += uint64(g.size) {
			n := min(g.size, int64(run.Hi-lo))
			g.frames = append(g.frames, frame{at: Addr{Absolute, lo}, bytes: n, page: noPage, home: noPage})
		}
	}
	return true
}

// frameAt is the frame that holds an address of run r.
func (g *pager) frameAt(r int, addr uint64) int {
	return g.frameOf[r] + int((addr-g.runs[r].Lo)/uint64(g.size))
}

// cutSegments makes the pieces, sorts them by page, and counts what frames hold.
func (g *pager) cutSegments() bool {
	g.pieces = make([]piece, 0, len(g.frames)+len(g.move.Segments))
	for _, o := range g.outStretches(g.pl) { // by address, so that nearly nothing is left to sort
		if !g.cutOutput(o.what) {
			return false
		}
	}
	slices.SortStableFunc(g.pieces, func(a, b piece) int { return a.page - b.page })
	for i, p := range g.pieces {
		f := &g.frames[p.page]
		if f.home == noPage {
			f.home, f.first = nowhere, i
			g.waiting++
		}
		f.end = i + 1
		if g.stays(g.pl, &g.move.Segments[p.segment]) {
			f.stay += p.end - p.first
		}
	}
	return true
}

// cutOutput makes the pieces of output b.
func (g *pager) cutOutput(b int) bool {
	for i := g.first[b]; i < g.first[b+1]; i++ {
		s := &g.move.Segments[i]
		if !g.ownEntry[s.Entry] {
			continue
		}
		if len(s.Axes) > 1 || len(s.Axes) == 1 && s.Axes[0].SrcStep != s.Bytes || len(g.pieces) > 16*mostPages {
			return false
		}
		g.cutSegment(i, s)
		g.eachSource(s, 0, s.Payload(), func(f *frame, n int64) { f.unread += n })
	}
	return true
}

// cutSegment appends a piece for each page that gets bytes of segment i.
func (g *pager) cutSegment(i int, s *Segment) {
	at := g.pl.at[s.Batch] + uint64(s.Dst)
	_, _, lo, hi := s.reach()
	r := g.runAt(at)
	last := g.frameAt(r, at+uint64(hi-lo)-1)
	for f := g.frameAt(r, at); f <= last; f++ {
		first, end := s.clip(int64(g.frames[f].at.Off-at), g.frames[f].bytes)
		if first < end {
			g.pieces = append(g.pieces, piece{f, i, first, end})
		}
	}
}

// clip is the bytes of the payload that land in the n bytes from lo on, counted
// from the segment's first. It has one axis at most.
func (s *Segment) clip(lo, n int64) (first, end int64) {
	rows, step := int64(1), s.Bytes
	if len(s.Axes) == 1 {
		rows, step = s.Axes[0].N, s.Axes[0].DstStep
	}
	return s.payloadBefore(lo, rows, step), s.payloadBefore(lo+n, rows, step)
}

// payloadBefore is how many bytes of the payload land below offset at.
func (s *Segment) payloadBefore(at, rows, step int64) int64 {
	if at <= 0 {
		return 0
	}
	row := min(at/step, rows-1)
	return row*s.Bytes + min(at-row*step, s.Bytes)
}

// eachSource calls f with every frame that the bytes [first, end) of a segment's
// payload are read from, and how many of them.
func (g *pager) eachSource(s *Segment, first, end int64, f func(f *frame, n int64)) {
	lo := g.places[s.Entry].Addr + uint64(s.Src+first)
	hi := lo + uint64(end-first)
	for i := g.frameAt(g.runOf[g.places[s.Entry].Block], lo); lo < hi; i++ {
		n := min(g.frames[i].at.Off+uint64(g.frames[i].bytes), hi) - lo
		f(&g.frames[i], int64(n))
		lo += n
	}
}

// run makes the steps, or reports that there is no room for them. It is strict
// where pages are assembled strictly one after the other. Then few frames are half
// read at any time, but more pages are away from home.
func (g *pager) run(strict bool) bool {
	for range mostWaves {
		if g.waiting == 0 {
			return g.bringHome()
		}
		g.moves, g.wave = nil, g.wave[:0]
		if strict {
			g.assembleNext()
		} else {
			g.assemble()
		}
		for _, p := range g.wave {
			g.consume(p)
		}
		g.gather()
		if len(g.wave) == 0 {
			return false
		}
	}
	return false
}

// assemble is one wave. Pages that can be assembled at home are, and the others
// where there is a free frame, unless so many were that the next wave will do.
func (g *pager) assemble() {
	before := g.waiting
	for f := range g.frames[:g.scratch] {
		if g.homeFree(f) {
			g.put(f, f)
		}
	}
	if home := len(g.wave); 4*home < before || int64(home)*g.size < waveBytes {
		g.assembleAway()
	}
}

// homeFree reports whether page p is to be assembled, and can be at home.
func (g *pager) homeFree(p int) bool {
	f := &g.frames[p]
	return f.home == nowhere && f.page == noPage && f.unread == f.stay
}

// assembleAway assembles pages in free frames that are not their home.
func (g *pager) assembleAway() {
	free := 0
	for p := range g.frames[:g.scratch] {
		if g.frames[p].home != nowhere {
			continue
		}
		for free < len(g.frames) && !g.free(free) {
			free++
		}
		if free == len(g.frames) {
			return
		}
		g.put(p, free)
	}
}

// assembleNext is one wave that takes the next pages, each at home if it can be or
// else in the last free frame, the home of a page whose turn comes late.
func (g *pager) assembleNext() {
	free := len(g.frames) - 1
	for p := range g.frames[:g.scratch] {
		if g.frames[p].home != nowhere {
			continue
		}
		if g.homeFree(p) {
			g.put(p, p)
			continue
		}
		for free >= 0 && !g.free(free) {
			free--
		}
		if free < 0 {
			return
		}
		g.put(p, free)
	}
}

// free reports whether frame f has room for a page.
func (g *pager) free(f int) bool {
	at := &g.frames[f]
	return at.page == noPage && at.unread == 0 && at.bytes == g.size
}

// put moves the pieces of page p into frame f.
func (g *pager) put(p, f int) {
	page := &g.frames[p]
	page.home = f
	g.frames[f].page = p
	g.waiting--
	g.wave = append(g.wave, p)
	for _, c := range g.pieces[page.first:page.end] {
		s := &g.move.Segments[c.segment]
		if p == f && g.stays(g.pl, s) {
			continue
		}
		at := g.pl.at[s.Batch] + uint64(s.Dst) - page.at.Off // may wrap where the page begins within the segment
		g.appendPiece(s, c, Addr{g.frames[f].at.Base, g.frames[f].at.Off + at})
	}
}

// appendPiece appends the moves of a piece of a segment whose first byte would go to dst.
func (g *pager) appendPiece(s *Segment, c piece, dst Addr) {
	src := Addr{Absolute, g.places[s.Entry].Addr}.plus(s.Src)
	if len(s.Axes) == 0 {
		g.moves = g.appendMove(g.moves, Move{dst.plus(c.first), src.plus(c.first), c.end - c.first, nil})
		return
	}
	step := s.Axes[0].DstStep
	part := func(first, end int64) { // of one row
		if first < end {
			row := first / s.Bytes
			g.moves = append(g.moves, Move{dst.plus(row*step + first - row*s.Bytes), src.plus(first), end - first, nil})
		}
	}
	head := min(roundUp(c.first, s.Bytes), c.end)
	tail := max(c.end/s.Bytes*s.Bytes, head)
	part(c.first, head)
	if rows := (tail - head) / s.Bytes; rows > 1 {
		axes := []Axis{{N: rows, SrcStep: s.Bytes, DstStep: step}}
		g.moves = append(g.moves, Move{dst.plus(head / s.Bytes * step), src.plus(head), s.Bytes, axes})
	} else {
		part(head, tail)
	}
	part(tail, c.end)
}

// consume notes that page p has got its pieces.
func (g *pager) consume(p int) {
	page := &g.frames[p]
	for _, c := range g.pieces[page.first:page.end] {
		g.eachSource(&g.move.Segments[c.segment], c.first, c.end, func(f *frame, n int64) { f.unread -= n })
	}
	page.stay = 0
}

// gather ends the wave.
func (g *pager) gather() {
	if len(g.moves) > 0 {
		g.steps = append(g.steps, Step{Kind: Gather, Moves: g.moves})
	}
	g.moves = nil
}

// bringHome makes the steps that bring every page home, when all are assembled:
// pages whose home ends a run or that can go at once in a Gather, for the others
// a permutation, and last the pages of the scratch.
func (g *pager) bringHome() bool {
	once := g.allHomesFree()
	for p := range g.frames[:g.scratch] {
		if f := &g.frames[p]; f.away(p) && (once || f.bytes < g.size) {
			g.goHome(p)
		}
	}
	g.gather()
	if !g.permute() {
		return false
	}
	for p := range g.frames[:g.scratch] {
		if g.frames[p].away(p) {
			g.goHome(p)
		}
	}
	g.gather()
	return true
}

// away reports whether the page of frame p lives elsewhere.
func (f *frame) away(p int) bool {
	return f.home >= 0 && f.home != p
}

// allHomesFree reports whether no page lives in another's home.
func (g *pager) allHomesFree() bool {
	for p := range g.frames[:g.scratch] {
		if f := &g.frames[p]; f.away(p) && f.page != noPage {
			return false
		}
	}
	return true
}

// goHome moves page p home, which is free.
func (g *pager) goHome(p int) {
	f := &g.frames[p]
	g.moves = g.appendMove(g.moves, Move{f.at, g.frames[f.home].at, f.bytes, nil})
	g.frames[f.home].page = noPage
	f.home, f.page = p, p
}

// permute brings the pages of the runs home.
func (g *pager) permute() bool {
	c := &cells{all: make([]cell, g.scratch)}
	p := &Permutation{Unit: g.size, Origin: g.frames[0].at.Off}
	steps, span := uint64(g.size), uint64(0)
	for f := range g.frames[:g.scratch] {
		from := g.frames[f].at.Off - p.Origin
		steps, span = gcd(steps, from), max(span, from)
	}
	p.Grain = grainFor(steps)
	if span/uint64(p.Grain) > 1<<31-1 {
		return false
	}
	found := false
	for f := range g.frames[:g.scratch] {
		c.all[f].pos = uint32((g.frames[f].at.Off - p.Origin) / uint64(p.Grain))
		if g.frames[f].away(f) && g.frames[f].home < g.scratch {
			c.link(f, g.frames[f].home)
			found = true
		}
	}
	if !found {
		return true
	}
	c.walk(p)
	if !g.apply(p) {
		return false
	}
	g.settle()
	return true
}

// apply makes the steps of a permutation of frames.
func (g *pager) apply(p *Permutation) bool {
	if g.o.Cooperative {
		g.steps = append(g.steps, Step{Kind: Permute, Perm: p})
		return p.TableBytes() <= g.tableLimit()
	}
	steps, ok := p.waves(g.spare(p))
	g.steps = append(g.steps, steps...)
	return ok
}

// spare is the frames that hold no page and that p does not move.
func (g *pager) spare(p *Permutation) []Addr {
	moved := make(map[uint64]bool, len(p.Pos))
	for _, v := range p.Pos {
		moved[p.address(v)] = true
	}
	var spare []Addr
	for i := range g.frames {
		if f := &g.frames[i]; g.free(i) && (f.at.Base == Scratch || !moved[f.at.Off]) {
			spare = append(spare, f.at)
		}
	}
	return spare
}

// settle notes that the pages of the runs are at home.
func (g *pager) settle() {
	for f := range g.frames[:g.scratch] {
		g.frames[f].page = noPage
	}
	for f := range g.frames[:g.scratch] {
		if g.frames[f].home >= 0 && g.frames[f].home < g.scratch {
			g.frames[f].home, g.frames[f].page = f, f
		}
	}
}

// way is the result.
func (g *pager) way() *way {
	w := &way{pl: g.pl, steps: g.steps, early: make([]bool, g.l.Batches), needs: make([]bool, len(g.blocks))}
	for i, r := range g.runOf {
		w.needs[i] = r >= 0 && g.used[r]
	}
	for _, e := range g.own {
		b := e % g.l.Batches
		if g.used[g.runOf[g.places[e].Block]] && !g.pl.in[b] {
			w.early[b] = true
		}
	}
	if n := len(g.frames) - g.scratch; n > 0 {
		w.scratch = int64(n) * g.size
		w.steps = slices.Concat([]Step{{Kind: AllocScratch}}, w.steps, []Step{{Kind: FreeScratch}})
	}
	return w
}
