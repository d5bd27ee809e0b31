package flatten

// run makes the steps, or reports that there is no room for them. It is strict
// where pages are assembled strictly one after the other. Then few frames are half
// read at any time, but more pages are away from home.
func (g *pager) run(strict bool) bool {
	for range mostWaves {
		if g.waiting == 0 {
			return g.bringHome()
		}
		g.moves, g.wave = nil, g.wave[:0]
		for g.frames[g.done].home != nowhere {
			g.done++
		}
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
	for f := g.done; f < g.scratch; f++ {
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
	for p := g.done; p < g.scratch; p++ {
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
	for p := g.done; p < g.scratch; p++ {
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
