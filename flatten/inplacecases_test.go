package flatten

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestPlanInPlaceRefuses(t *testing.T) {
	good := func() *memoryJob {
		return &memoryJob{
			layout: uniform(2, 2, 2), places: []Place{{0x1000, 0}, {0x1008, 1}, {0x1010, 2}, {0x9000, -1}},
			blocks: []Block{block(0x1000, 8), block(0x1008, 8), block(0x1010, 8)},
		}
	}
	good().check(t, newRand(1))
	for _, tt := range []struct {
		name  string
		spoil func(m *memoryJob)
		want  error
	}{
		{"rows", func(m *memoryJob) { m.layout.Rows[1] = -1 }, ErrShape},
		{"too few places", func(m *memoryJob) { m.places = m.places[1:] }, ErrShape},
		{"no such block", func(m *memoryJob) { m.places[0].Block = 3 }, ErrShape},
		{"negative block", func(m *memoryJob) { m.places[0].Block = -2 }, ErrShape},
		{"entry in the wrong block", func(m *memoryJob) { m.places[0].Block = 1 }, ErrShape},
		{"entry beyond its block", func(m *memoryJob) { m.places[0].Addr += 4 }, ErrShape},
		{"entry before its block", func(m *memoryJob) { m.places[0].Addr -= 4 }, ErrShape},
		{"held entry in a block", func(m *memoryJob) { m.places[3].Addr = 0x1014 }, ErrOverlap},
		{"held entry around a block", func(m *memoryJob) { m.blocks[2] = block(0x9004, 1); m.places[2].Block = -1 }, ErrOverlap},
		{"held entry at the end of memory", func(m *memoryJob) { m.places[3].Addr = math.MaxUint64 - 3 }, ErrShape},
		{"block with its ends swapped", func(m *memoryJob) { m.blocks[1].Lo, m.blocks[1].Hi = m.blocks[1].Hi, m.blocks[1].Lo }, ErrShape},
		{"block of negative size", func(m *memoryJob) { m.blocks[1].Bytes = -1 }, ErrShape},
		{"block at the end of memory", func(m *memoryJob) { m.blocks = append(m.blocks, Block{Lo: 1 << 62, Hi: 1<<62 + 1}) }, ErrShape},
		{"blocks that overlap", func(m *memoryJob) { m.blocks[0].Hi++ }, ErrOverlap},
		{"block in a block", func(m *memoryJob) { m.blocks = append(m.blocks, Block{Lo: 0x1002, Hi: 0x1003}) }, ErrOverlap},
		{"two devices", func(m *memoryJob) { m.layout.Devices = []Device{{DeviceCUDA, 0}, {DeviceCUDA, 1}} }, ErrDevice},
		{"entries of another shape", func(m *memoryJob) { m.entries = tensors([]int64{2}, []int64{2}, []int64{2}, []int64{3}) }, ErrShape},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := good()
			tt.spoil(m)
			p, err := PlanInPlace(m.layout, m.entries, m.places, m.blocks, m.o)
			if !errors.Is(err, tt.want) || p != nil {
				t.Errorf("got %v, %v, want %v", p, err, tt.want)
			}
		})
	}
}

// kinds are the kinds of a plan's steps, in order.
func kinds(p *InPlace) (all []StepKind) {
	for i := range p.Steps {
		all = append(all, p.Steps[i].Kind)
	}
	return all
}

// adjoining is the entries of a layout in blocks of their own, side by side in
// the given order, the first perBlockRange of them in one range, and so on.
func adjoining(l *Layout, round uint64, perRange int) memoryJob {
	m := memoryJob{layout: l, places: make([]Place, len(l.Rows)), o: Options{Cooperative: true}}
	at := uint64(1 << 20)
	for e, rows := range l.Rows {
		n := rows * l.RowBytes()
		end := at + (uint64(n)+round-1)/round*round
		m.places[e] = Place{at, e}
		m.blocks = append(m.blocks, Block{Lo: at, Hi: end, Bytes: n, Range: e / perRange})
		at = end
	}
	return m
}

func TestStrategies(t *testing.T) {
	held := func(m memoryJob, entries ...int) memoryJob {
		for _, e := range entries {
			m.places[e] = Place{m.places[e].Addr + 1<<21, -1}
			m.blocks[e].Bytes, m.blocks[e].Hi = 0, m.blocks[e].Lo
		}
		return m
	}
	with := func(m memoryJob, o Options) memoryJob {
		m.o = o
		return m
	}
	fixed := func(m memoryJob) memoryJob {
		for i := range m.blocks {
			m.blocks[i].Fixed = true
		}
		return m
	}
	offGrid := uniform(3, 4, 0, 3) // rows of 12 bytes, blocks of multiples of 16
	for e := range offGrid.Rows {
		offGrid.Rows[e] = int64(100 + e%4)
	}
	for _, tt := range []struct {
		name     string
		job      memoryJob
		strategy string
		growth   int64
		want     []StepKind
	}{
		{"one run", adjoining(uniform(4, 4, 5, 8), 1, 16), StrategyInPlace, 0, []StepKind{Permute}},
		{"two runs, outputs of rows from both", adjoining(uniform(4, 4, 5, 8), 1, 8), StrategyInPlace, 0, []StepKind{Permute}},
		{"runs of one entry", adjoining(uniform(2, 2, 5, 8), 1, 1), StrategyStream, 320, []StepKind{Alloc, Gather, Free, Alloc, Gather, Free}},
		{"one key stays", adjoining(uniform(1, 3, 5, 8), 1, 1), StrategyInPlace, 0, nil},
		{"nothing to move", adjoining(uniform(2, 2, 0, 8), 1, 1), StrategyInPlace, 0, []StepKind{Free, Alloc, Alloc}},
		{"no batches", adjoining(uniform(0, 0, 0), 1, 1), StrategyInPlace, 0, nil},
		{"all held", held(adjoining(uniform(2, 1, 5, 8), 1, 2), 0, 1), StrategyStream, 320, []StepKind{Alloc, Gather}},
		{"all fixed", fixed(adjoining(uniform(2, 1, 5, 8), 1, 2)), StrategyStream, 320, []StepKind{Alloc, Gather, Free}},
		{"no adoption", with(adjoining(uniform(2, 1, 5, 8), 1, 2), Options{NoAdopt: true}), StrategyStream, 320, []StepKind{Alloc, Gather, Free}},
		{"off the grid with scratch", with(adjoining(offGrid, 16, 12), Options{Cooperative: true, ScratchBytes: 1 << 20, TableLimit: 2048}), StrategyInPlace, 1792, nil},
		{"short rows, a table above the limit but below the scratch", with(adjoining(ragged(64, 32, 8, 16), 1, 2048), Options{Cooperative: true, ScratchBytes: 1 << 20}), StrategyInPlace, 0, []StepKind{Permute}},
		{"rows of 16 bytes, a table above the scratch", with(adjoining(ragged(64, 32, 8, 4), 1, 2048), Options{Cooperative: true, ScratchBytes: 1 << 20}), StrategyInPlace, 4992, nil},
		{"off the grid, a long table", with(adjoining(offGrid, 16, 12), Options{Cooperative: true}), StrategyInPlace, 0, []StepKind{Permute}},
		{"off the grid, nothing allowed", with(adjoining(offGrid, 16, 12), Options{}), StrategyStream, 3708, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.job.check(t, newRand(1))
			if p.Strategy != tt.strategy || p.Growth != tt.growth {
				t.Errorf("got %s with growth %d, want %s with %d\n%v", p.Strategy, p.Growth, tt.strategy, tt.growth, p)
			}
			if got := kinds(p); tt.want != nil && !slices.Equal(got, tt.want) {
				t.Errorf("got steps %v, want %v\n%v", got, tt.want, p)
			}
		})
	}
}

// A storage of no bytes can have an address inside of another's.
func TestEmptyBlockInsideABlock(t *testing.T) {
	m := adjoining(uniform(2, 2, 2, 4), 1, 4)
	m.blocks = append([]Block{{Lo: 1<<20 + 8, Hi: 1<<20 + 8}}, m.blocks...)
	for e := range m.places {
		m.places[e].Block++
	}
	m.check(t, newRand(1))
}

// The largest spilled output comes when most has been given back.
func TestSpillsInTheOrderOfTheLowestPeak(t *testing.T) {
	l := uniform(2, 3, 0, 4)
	copy(l.Rows, []int64{10, 1, 5, 10, 1, 5})
	m := adjoining(l, 1, 1)
	p := m.check(t, newRand(1))
	var order []int
	for i := range p.Steps {
		if p.Steps[i].Kind == Alloc {
			order = append(order, p.Steps[i].Batch)
		}
	}
	if want := []int{1, 2, 0}; !slices.Equal(order, want) || p.Growth != 20*16 {
		t.Errorf("got order %v, growth %d, want %v, %d", order, p.Growth, want, 20*16)
	}
}

// Outputs that lie on free room keep blocks for the statistics, so that what a
// caller has allocated does not look smaller than what it uses.
func TestOutputsOnFreeRoomKeepBlocks(t *testing.T) {
	m := adjoining(uniform(4, 3, 5, 256), 512, 12)
	last := m.blocks[len(m.blocks)-1]
	m.blocks = append(m.blocks, Block{Lo: last.Hi, Hi: last.Hi + 1<<17})
	p := m.check(t, newRand(1))
	for b, under := range p.Under {
		var kept int64
		for _, i := range under {
			kept += m.blocks[i].Bytes
		}
		if want := m.layout.BatchBytes(b); kept < want {
			t.Errorf("output %d keeps %d bytes, want %d\n%v", b, kept, want, p)
		}
	}
}

// Large units on several workers give what small ones on one do.
func TestPermuteOnSeveralWorkers(t *testing.T) {
	for _, rows := range []int64{1, 3} {
		m := adjoining(uniform(4, 3, rows, 1<<17), 1, 12)
		p, err := PlanInPlace(m.layout, nil, m.places, m.blocks, m.o)
		if err != nil {
			t.Fatal(err)
		}
		var perm *Permutation
		for i := range p.Steps {
			perm = p.Steps[i].Perm
		}
		if perm == nil {
			t.Fatalf("no permutation in %v", p)
		}
		a := m.newArena(newRand(1))
		b := &arena{base: a.base, memory: slices.Clone(a.memory)}
		perm.run(a, 1)
		perm.run(b, 4)
		if at := firstDifference(b.memory, a.memory); at >= 0 {
			t.Errorf("byte %d differs", at)
		}
	}
}

// A job of 6 GiB that lies in two ranges 3 TiB apart.
func TestPlanInPlaceBeyond32Bits(t *testing.T) {
	l := uniform(3, 4, 1<<17, 1<<10) // entries of 512 MiB, rows of 4 KiB
	l.Rows[5]--
	m := adjoining(l, 1, 6)
	for e := 6; e < 12; e++ {
		m.places[e].Addr += 3 << 40
		m.blocks[e].Lo += 3 << 40
		m.blocks[e].Hi += 3 << 40
	}
	p, err := PlanInPlace(l, nil, m.places, m.blocks, m.o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.verify(); err != nil {
		t.Error(err)
	}
	if p.Growth != 0 || !slices.Equal(kinds(p), []StepKind{Permute}) {
		t.Fatalf("got %s, growth %d, steps %v", p.Strategy, p.Growth, kinds(p))
	}
	perm := p.Steps[0].Perm
	if perm.Unit != 4096 || perm.Grain != 4096 {
		t.Errorf("got units of %d on a grain of %d, want 4096 for both", perm.Unit, perm.Grain)
	}
	if got := slices.Max(perm.Pos); got>>31 != 0 || perm.address(got) < 3<<40 {
		t.Errorf("the last position is %d at %#x", got, perm.address(got))
	}
}

func TestReservedBound(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name  string
		sizes []int64
		want  int64
	}{
		{"nothing", nil, 0},
		{"an empty output", []int64{0}, 0},
		{"small ones share a segment", []int64{1, 512, 300 << 10}, 2 * mib},
		{"three of the largest small ones", []int64{mib, mib, mib}, 6 * mib}, // 4 would do
		{"more than small", []int64{mib + 1}, 20 * mib},
		{"just below a segment of its own", []int64{10*mib - 512}, 20 * mib},
		{"a segment of its own", []int64{10 * mib}, 20 * mib},
		{"rounded up", []int64{20*mib + 1}, 40 * mib},
		{"all kinds", []int64{1, 2 * mib, 31 * mib}, (2 + 20 + 40) * mib},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ReservedBound(tt.sizes); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestBoundsHoldForEveryPlan(t *testing.T) {
	rng := newRand(3)
	for range 2000 {
		m := (&decoder{randomBytes(rng, 400)}).memoryJob()
		best, worst, err := Bounds(m.layout)
		if err != nil {
			t.Fatal(err)
		}
		m.o.TableLimit = 0
		p := m.check(t, rng)
		if p.Growth < best.Growth || p.Growth > worst.Growth || p.Tables > worst.Tables {
			t.Fatalf("growth %d of %d to %d, tables %d of %d", p.Growth, best.Growth, worst.Growth, p.Tables, worst.Tables)
		}
		if p.ReservedGrowth > max(worst.ReservedGrowth, ReservedBound([]int64{p.Scratch})) {
			t.Fatalf("reserved %d of %d\n%v", p.ReservedGrowth, worst.ReservedGrowth, p)
		}
	}
	if _, _, err := Bounds(&Layout{NumKeys: 1, Batches: 1, Rows: []int64{-1}, DType: float32s}); !errors.Is(err, ErrShape) {
		t.Errorf("got %v, want a ShapeError", err)
	}
}
