package flatten

import "math"

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

// permute brings the pages of the runs home. It reports false where that cannot be.
func (g *pager) permute() bool {
	p, c := g.positions()
	if p == nil {
		return false
	}
	found := false
	for f := range c.from {
		if g.frames[f].away(f) && g.frames[f].home < g.scratch {
			c.link(f, g.frames[f].home, 1)
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

// positions is a permutation without chains, and a cell for each frame of the
// runs. The permutation is nil if they are too far apart.
func (g *pager) positions() (*Permutation, *cells) {
	p := &Permutation{Unit: g.size, Origin: g.frames[0].at.Off}
	frames := g.frames[:g.scratch]
	steps, span := uint64(g.size), uint64(0)
	for f := range frames {
		from := frames[f].at.Off - p.Origin
		steps, span = gcd(from, steps), max(span, from)
	}
	p.Grain = grainFor(steps)
	if span/uint64(p.Grain) > math.MaxInt32 {
		return nil, nil
	}
	c := new(cells)
	c.make(p, len(frames))
	for f := range frames {
		if at := frames[f].at.Off; f == 0 || at != frames[f-1].at.Off+uint64(g.size) {
			c.patch(f, uint32((at-p.Origin)/uint64(p.Grain)))
		}
	}
	return p, c
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
