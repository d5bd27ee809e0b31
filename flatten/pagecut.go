package flatten

import "slices"

// newPager cuts runs into frames and segments into pieces. It is nil where there
// are too many of them.
func (j *inPlaceJob) newPager(pl *placement, size, scratch int64) *pager {
	g := &pager{inPlaceJob: j, pl: pl, size: size, used: j.usedRuns(pl)}
	if !g.cutRuns() || !g.cutSegments() {
		return nil
	}
	g.scratch = len(g.frames)
	for off := int64(0); off+size <= scratch; off += size {
		g.frames = append(g.frames, frame{at: Addr{Scratch, uint64(off)}, bytes: size, page: noPage, home: noPage})
	}
	return g
}

// usedRuns is the runs whose frames may be used: those that an output in place
// comes from or goes to, and those without entries.
func (j *inPlaceJob) usedRuns(pl *placement) []bool {
	used, foreign := make([]bool, len(j.runs)), make([]bool, len(j.runs))
	for _, e := range j.own {
		r := j.runOf[j.places[e].Block]
		if pl.in[e%j.l.Batches] {
			used[r] = true
		} else {
			foreign[r] = true
		}
	}
	for _, o := range j.outStretches(pl) {
		used[j.runAt(o.lo)] = true
	}
	for r := range used {
		used[r] = used[r] || !foreign[r]
	}
	return used
}

// spilledFrom tells of each spilled output whether one of its entries lies in a
// run that is used.
func (j *inPlaceJob) spilledFrom(pl *placement, used []bool) []bool {
	early := make([]bool, j.l.Batches)
	for _, e := range j.own {
		if b := e % j.l.Batches; !pl.in[b] && used[j.runOf[j.places[e].Block]] {
			early[b] = true
		}
	}
	return early
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
