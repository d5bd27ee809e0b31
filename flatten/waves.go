package flatten

// waves does what the permutation does by Gather steps through spare memory, places
// of one unit each, for devices without cooperative launches. Two steps move as
// many units as there are spare places: out of the chain, and back to where they
// belong. ok is false where there are too few places for mostWaves.
func (p *Permutation) waves(spare []Addr) (steps []Step, ok bool) {
	if len(spare) < 2 || p.Units()/int64(len(spare)-1) > mostWaves/4 {
		return nil, false
	}
	w := waves{unit: p.Unit, spare: spare}
	for i := range p.Ends {
		chain := p.chain(i)
		if p.Closed[i] {
			w.closed(p, chain)
		} else {
			w.open(p, chain)
		}
	}
	w.flush()
	return w.steps, true
}

// A waves is the state of Permutation.waves.
type waves struct {
	unit  int64
	spare []Addr // not in use
	busy  []Addr // free again after the next flush
	out   []Move // into spare places
	back  []Move // from there
	steps []Step
}

// open moves the units of an open chain.
func (w *waves) open(p *Permutation, chain []uint32) {
	for i, v := range chain[1:] {
		w.move(Addr{Absolute, p.address(chain[i])}, Addr{Absolute, p.address(v)})
	}
}

// closed moves those of a closed chain, whose first unit waits in a place of its
// own until the last position is free.
func (w *waves) closed(p *Permutation, chain []uint32) {
	if len(w.spare) < 2 {
		w.flush()
	}
	head := w.take()
	w.out = append(w.out, Move{head, Addr{Absolute, p.address(chain[0])}, w.unit, nil})
	w.open(p, chain)
	w.back = append(w.back, Move{Addr{Absolute, p.address(chain[len(chain)-1])}, head, w.unit, nil})
	w.busy = append(w.busy, head)
}

// move moves one unit through a spare place.
func (w *waves) move(dst, src Addr) {
	if len(w.spare) == 0 {
		w.flush()
	}
	at := w.take()
	w.out = append(w.out, Move{at, src, w.unit, nil})
	w.back = append(w.back, Move{dst, at, w.unit, nil})
	w.busy = append(w.busy, at)
}

// take takes a spare place.
func (w *waves) take() Addr {
	at := w.spare[len(w.spare)-1]
	w.spare = w.spare[:len(w.spare)-1]
	return at
}

// flush makes the two steps of all moves so far.
func (w *waves) flush() {
	if len(w.out) > 0 {
		w.steps = append(w.steps, Step{Kind: Gather, Moves: w.out}, Step{Kind: Gather, Moves: w.back})
	} else if len(w.back) > 0 {
		w.steps = append(w.steps, Step{Kind: Gather, Moves: w.back})
	}
	w.spare = append(w.spare, w.busy...)
	w.out, w.back, w.busy = nil, nil, w.busy[:0]
}
