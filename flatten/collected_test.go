package flatten

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A pool is a model of torch's allocator on one mapped range: segments of its
// sizes lie one after the other, blocks in them are split and joined again, and
// the smallest that fits is taken.
type pool struct {
	end  uint64 // of the last segment
	free []poolBlock
}

type poolBlock struct {
	lo, hi  uint64
	segment uint64
	small   bool
}

// malloc is a block for n bytes.
func (p *pool) malloc(n int64) poolBlock {
	size := uint64(max(roundUp(n, roundTo), roundTo))
	small := size <= smallMost
	best := -1
	for i, b := range p.free {
		if b.small == small && b.hi-b.lo >= size && (best < 0 || b.hi-b.lo < p.free[best].hi-p.free[best].lo) {
			best = i
		}
	}
	if best < 0 {
		segment := uint64(smallSegment)
		if !small {
			segment = mediumSegment
		}
		if size >= mediumMost {
			segment = uint64(roundUp(int64(size), largeTo))
		}
		p.free = append(p.free, poolBlock{p.end, p.end + segment, p.end, small})
		p.end += segment
		best = len(p.free) - 1
	}
	b := p.free[best]
	p.free = slices.Delete(p.free, best, best+1)
	if rest := b.hi - b.lo - size; small && rest >= roundTo || rest > smallMost {
		p.free = append(p.free, poolBlock{b.lo + size, b.hi, b.segment, small})
		b.hi = b.lo + size
	}
	return b
}

// release gives a block back, joined with its free neighbours.
func (p *pool) release(b poolBlock) {
	for i := 0; i < len(p.free); i++ {
		f := p.free[i]
		if f.segment == b.segment && (f.hi == b.lo || b.hi == f.lo) {
			b.lo, b.hi = min(b.lo, f.lo), max(b.hi, f.hi)
			p.free = slices.Delete(p.free, i, i+1)
			i = -1
		}
	}
	p.free = append(p.free, b)
}

// collect makes the entries of a layout in a pool, with temporaries in between,
// and returns where they are and what room is free. Memory is mapped in multiples
// of chunk bytes.
func collect(l *Layout, rng *rand.Rand, chunk uint64) (places []Place, blocks []Block) {
	const base = 1 << 40
	p := &pool{end: base}
	var temporaries []poolBlock
	for e, rows := range l.Rows {
		if rng.IntN(2) == 0 {
			temporaries = append(temporaries, p.malloc(1+rng.Int64N(2*l.Bytes()/int64(len(l.Rows))+1)))
		}
		b := p.malloc(rows * l.RowBytes())
		places = append(places, Place{b.lo, e})
		blocks = append(blocks, Block{Lo: b.lo, Hi: b.hi, Bytes: rows * l.RowBytes()})
		if len(temporaries) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(temporaries))
			p.release(temporaries[i])
			temporaries = slices.Delete(temporaries, i, i+1)
		}
	}
	mapped := stretch{base, base + (p.end-base+chunk-1)/chunk*chunk, 0}
	var live []stretch
	for _, b := range blocks {
		live = append(live, stretch{b.Lo, b.Hi, 0})
	}
	slices.SortFunc(live, func(a, b stretch) int { return int(int64(a.lo) - int64(b.lo)) })
	for _, f := range gaps([]Run{{mapped.lo, mapped.hi, 0}}, live) {
		blocks = append(blocks, Block{Lo: f.lo, Hi: f.hi})
	}
	return places, blocks
}

// cost is how many bytes the steps move, and in how many launches.
func (p *InPlace) cost() (moved int64, launches int) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind == Gather || s.Kind == Permute {
			launches++
		}
		for k := range s.Moves {
			moved += s.Moves[k].Payload()
		}
		if s.Perm != nil {
			moved += s.Perm.Units() * s.Perm.Unit
		}
	}
	return moved, launches
}

// The same with bytes, also where waves take the place of a permutation.
func TestCollectedJobsAreRight(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := newRand(seed)
	pages := 0
	for i := range 24 {
		l := ragged(1+rng.IntN(8), 1+rng.IntN(8), 1+rng.Int64N(60), 100+rng.Int64N(400))
		l.Dim = rng.IntN(3) / 2
		m := &memoryJob{layout: l, o: Options{Cooperative: i%4 > 0, ScratchBytes: 1 << 20}}
		m.places, m.blocks = collect(l, rng, 1<<19)
		if moved, _ := m.check(t, rng).cost(); moved > l.Bytes() {
			pages++
		}
	}
	t.Logf("%d of 24 moved bytes twice", pages)
}

// Jobs that lie in one range with the room that temporaries leave never grow, and
// move hardly more than twice their bytes.
func TestCollectedJobsNeverGrow(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var most float64
	var mostLaunches int
	shapes := [][]int64{{256, 7, 7}, {260}, {1024}, {7}, {3, 50}}
	for range 200 {
		l := ragged(1+rng.IntN(12), 1+rng.IntN(12), 1+rng.Int64N(200), shapes[rng.IntN(len(shapes))]...)
		for e := range l.Rows {
			l.Rows[e] = rng.Int64N(2*l.Rows[e] + 1)
		}
		l.Dim = rng.IntN(4) / 3
		places, blocks := collect(l, rng, 2<<20)
		p, err := PlanInPlace(l, nil, places, blocks, Options{Cooperative: true, ScratchBytes: DefaultScratchBytes, TableLimit: math.MaxInt64})
		if err != nil {
			t.Fatal(err)
		}
		moved, launches := p.cost()
		if p.Growth != 0 {
			t.Errorf("%v: growth %d of %d bytes, %s", l, p.Growth, l.Bytes(), p.Strategy)
		}
		if l.Bytes() > 1<<20 {
			most = max(most, float64(moved)/float64(l.Bytes()))
		}
		mostLaunches = max(mostLaunches, launches)
	}
	t.Logf("moved at most %.2f times the bytes, %d launches", most, mostLaunches)
	if most > 2.2 {
		t.Errorf("moved %.2f times the bytes", most)
	}
}
