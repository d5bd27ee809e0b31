package flatten

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A memoryJob is a job with the memory that its entries lie in.
type memoryJob struct {
	layout  *Layout
	entries []Entry // nil for contiguous
	places  []Place
	blocks  []Block
	o       Options
}

// An arena is an address space of one stretch of bytes, with outputs and scratch
// beside it. It is the Space that tests run plans on.
type arena struct {
	base    uint64
	memory  []byte
	outs    [][]byte
	scratch []byte
}

func (a *arena) At(at Addr, n int64) []byte {
	memory, off := a.memory, at.Off-a.base
	switch {
	case at.Base == Scratch:
		memory, off = a.scratch, at.Off
	case at.Base >= 0:
		memory, off = a.outs[at.Base], at.Off
	}
	return memory[off:][:n:n]
}

// newArena holds all blocks and entries of the job, full of random bytes, with
// some bytes around them.
func (m *memoryJob) newArena(rng *rand.Rand) *arena {
	lo, hi := uint64(1<<62), uint64(0)
	for _, b := range m.blocks {
		lo, hi = min(lo, b.Lo), max(hi, b.Hi)
	}
	for e, p := range m.places {
		if n := m.span(e); n > 0 {
			lo, hi = min(lo, p.Addr), max(hi, p.Addr+uint64(n))
		}
	}
	a := &arena{outs: make([][]byte, m.layout.Batches)}
	if lo < hi {
		a.base = lo - 64
		a.memory = randomBytes(rng, int(hi-lo)+128)
	}
	return a
}

func randomBytes(rng *rand.Rand, n int) []byte {
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(rng.Uint32())
	}
	return all
}

// span is how many bytes entry e spans.
func (m *memoryJob) span(e int) int64 {
	if m.entries == nil {
		return m.layout.Rows[e] * m.layout.RowBytes()
	}
	lo, hi := m.entries[e].Span(m.layout.DType.ElemBytes())
	return hi - lo
}

// want is what the outputs must be: those of the plain plan.
func (m *memoryJob) want(t *testing.T, a *arena) [][]byte {
	t.Helper()
	var p Plan
	var err error
	if m.entries == nil {
		err = p.BuildPlain(m.layout)
	} else {
		err = p.Build(m.layout, m.entries, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	dst, src := make([][]byte, m.layout.Batches), make([][]byte, len(m.places))
	for b := range dst {
		dst[b] = make([]byte, m.layout.BatchBytes(b))
	}
	for e, at := range m.places {
		if n := m.span(e); n > 0 {
			src[e] = slices.Clone(a.At(Addr{Absolute, at.Addr}, n))
		}
	}
	Apply(dst, src, &p)
	return dst
}

// writable marks the bytes of the arena that a plan may write.
func (m *memoryJob) writable(a *arena) []bool {
	marks := make([]bool, len(a.memory))
	for _, b := range m.blocks {
		for at := b.Lo; at < b.Hi; at++ {
			marks[at-a.base] = !b.Fixed
		}
	}
	return marks
}

// check plans the job, runs the plan on an arena and compares everything with
// the plain plan.
func (m *memoryJob) check(t *testing.T, rng *rand.Rand) *InPlace {
	t.Helper()
	p, err := PlanInPlace(m.layout, m.entries, m.places, m.blocks, m.o)
	if err != nil {
		t.Fatalf("%v\n%v", err, m)
	}
	if err := p.verify(); err != nil {
		t.Fatalf("%v\n%v\n%v", err, m, p)
	}
	a := m.newArena(rng)
	want, before, writable := m.want(t, a), slices.Clone(a.memory), m.writable(a)
	if got, want := m.run(p, a, rng), p.Growth; got != want {
		t.Fatalf("growth: got %d, want %d\n%v\n%v", got, want, m, p)
	}
	for b := range want {
		if got := a.At(p.Outs[b], int64(len(want[b]))); !bytes.Equal(got, want[b]) {
			t.Fatalf("output %d: first wrong byte %d of %d\n%v\n%v", b, firstDifference(got, want[b]), len(want[b]), m, p)
		}
	}
	for i, may := range writable {
		if !may && a.memory[i] != before[i] {
			t.Fatalf("byte %#x of somebody else was changed\n%v\n%v", a.base+uint64(i), m, p)
		}
	}
	return p
}

// run does the steps of the plan and returns how far the level rose. A block that
// is given back is overwritten at once and must not change from then on.
func (m *memoryJob) run(p *InPlace, a *arena, rng *rand.Rand) int64 {
	var level, most int64
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Kind {
		case Alloc:
			a.outs[s.Batch] = randomBytes(rng, int(m.layout.BatchBytes(s.Batch)))
			level += m.layout.BatchBytes(s.Batch)
		case AllocScratch:
			a.scratch = randomBytes(rng, int(p.Scratch))
			level += p.Scratch
		case FreeScratch:
			a.scratch = nil
			level -= p.Scratch
		case Free:
			for _, b := range s.Blocks {
				level -= m.blocks[b].Bytes
				if !m.blocks[b].Fixed && m.blocks[b].Lo < m.blocks[b].Hi {
					copy(a.At(Addr{Absolute, m.blocks[b].Lo}, int64(m.blocks[b].Hi-m.blocks[b].Lo)), randomBytes(rng, int(m.blocks[b].Hi-m.blocks[b].Lo)))
				}
			}
		default:
			p.Run(i, a, 1+i%3)
		}
		most = max(most, level)
	}
	return most
}

func (m *memoryJob) String() string {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%v\nrows %v\noptions %+v\n", m.layout, m.layout.Rows, m.o)
	for i, b := range m.blocks {
		fmt.Fprintf(&text, "block %d [%#x, %#x) of range %d, %d bytes, fixed %v\n", i, b.Lo, b.Hi, b.Range, b.Bytes, b.Fixed)
	}
	for e, p := range m.places {
		fmt.Fprintf(&text, "entry %d at %#x in block %d, %d bytes", e, p.Addr, p.Block, m.span(e))
		if m.entries != nil {
			fmt.Fprintf(&text, ", %v strides %v", m.entries[e].Shape, m.entries[e].Strides)
		}
		fmt.Fprintln(&text)
	}
	return text.String()
}

// memoryJob decodes a job and the memory it lies in.
func (d *decoder) memoryJob() *memoryJob {
	dtypes := []DType{{CodeUint, 8, 1}, {CodeFloat, 16, 1}, {CodeFloat, 32, 1}, {CodeFloat, 64, 1}, {CodeUint, 8, 3}, {CodeComplex, 128, 1}}
	l := &Layout{NumKeys: 1 + d.below(6), Batches: 1 + d.below(6), DType: dtypes[d.below(len(dtypes))]}
	for range d.below(3) {
		l.RowShape = append(l.RowShape, 1+int64(d.below(8)))
	}
	if d.below(4) == 0 {
		l.Dim = d.below(len(l.RowShape) + 1)
	}
	l.Rows = make([]int64, l.NumKeys*l.Batches)
	most := 1 + d.below(20)
	uniform := d.below(2) == 0
	for e := range l.Rows {
		l.Rows[e] = int64(d.below(most + 1))
		if uniform {
			l.Rows[e] = int64(most)
		}
	}
	m := &memoryJob{layout: l, places: make([]Place, len(l.Rows))}
	m.o = Options{Cooperative: d.below(4) > 0, NoAdopt: d.below(32) == 1}
	if d.below(3) > 0 {
		m.o.ScratchBytes = int64(d.below(64)) * 64
	}
	switch d.below(4) {
	case 0:
		m.o.TableLimit = 1 << 40
	case 1:
		m.o.TableLimit = int64(d.below(64))
	}
	if d.below(6) == 1 {
		d.stride(m)
	}
	d.allocate(m)
	return m
}

// stride gives the job entries, some of them with strides.
func (d *decoder) stride(m *memoryJob) {
	l := m.layout
	m.entries = make([]Entry, len(l.Rows))
	for e := range m.entries {
		v := View{Shape: l.EntryShape(e/l.Batches, e%l.Batches)}
		switch d.below(4) {
		case 0:
			v.Strides = make([]int64, len(v.Shape))
			step := l.DType.ElemBytes()
			for i := range v.Strides { // column by column, with gaps, perhaps backwards or expanded
				v.Strides[i] = step * int64([]int{1, -1, 2, 0}[d.below(4)])
				step *= max(v.Shape[i], 1) * 2
			}
		case 1:
			v.Strides = make([]int64, len(v.Shape))
			step := l.DType.ElemBytes()
			for i := len(v.Shape) - 1; i >= 0; i-- {
				v.Strides[i] = step
				step *= v.Shape[i]
			}
		}
		m.entries[e] = Entry{View: v, DType: l.DType}
	}
}

// allocate lays the entries out as allocators do: each in a block of its own or
// several in one, blocks side by side or with gaps, which are free room or
// somebody else's, in one range or several.
func (d *decoder) allocate(m *memoryJob) {
	round := uint64(1) << d.below(7)
	gaps, held, fixed, shared, ranges := d.below(4), d.below(4), d.below(6), d.below(4), d.below(4)
	at, id := uint64(1<<20)+uint64(d.below(4)), 0
	for _, e := range d.order(m) {
		n := uint64(m.span(e))
		last := len(m.blocks) - 1
		switch {
		case held == 1 && d.below(6) == 0:
			m.places[e] = Place{at, -1}
			at += n
			at = (at + round - 1) / round * round
			continue
		case shared == 1 && d.below(16) == 0 && last >= 0 && m.blocks[last].Hi-m.blocks[last].Lo >= n:
			m.places[e] = Place{m.blocks[last].Hi - n, last} // on top of others
			continue
		case shared > 1 && d.below(4) > 0 && last >= 0 && m.blocks[last].Hi == at:
			m.blocks[last].Hi += n
			m.blocks[last].Bytes += int64(n)
			m.places[e] = Place{at, last}
			at += n
			continue
		}
		if gaps > 0 && d.below(4) == 0 {
			gap := uint64(1 + d.below(100*gaps))
			gap = (gap + round - 1) / round * round
			if d.below(4) > 0 {
				m.blocks = append(m.blocks, Block{Lo: at, Hi: at + gap, Range: id})
			}
			at += gap
		}
		if ranges == 1 && d.below(4) == 0 {
			id++
		}
		m.places[e] = Place{at, len(m.blocks)}
		end := (at + n + round - 1) / round * round
		m.blocks = append(m.blocks, Block{Lo: at, Hi: end, Range: id, Bytes: int64(n), Fixed: fixed == 1 && d.below(4) == 0})
		at = end
	}
	if slack := d.below(8); slack > 0 {
		m.blocks = append(m.blocks, Block{Lo: at, Hi: at + uint64(slack*slack*slack*d.below(32)), Range: id})
	}
}

// order is the order in which entries are made: key by key, batch by batch, or any.
func (d *decoder) order(m *memoryJob) []int {
	l := m.layout
	order := make([]int, 0, len(l.Rows))
	how := d.below(4)
	for i := range l.Rows {
		e := i
		if how == 1 {
			e = i%l.NumKeys*l.Batches + i/l.NumKeys
		}
		order = append(order, e)
	}
	if how > 1 {
		for i := range order {
			k := d.below(i + 1)
			order[i], order[k] = order[k], order[i]
		}
	}
	return order
}

func TestRandomPlansInPlace(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := map[string]int{}
	for range 20000 {
		p := (&decoder{randomBytes(rng, 400)}).memoryJob().check(t, rng)
		kinds[p.Strategy+kindsOf(p)]++
	}
	t.Log(kinds)
}

// kindsOf names the kinds of steps that move in place.
func kindsOf(p *InPlace) string {
	text := ""
	for i := range p.Steps {
		switch p.Steps[i].Kind {
		case Permute:
			text += " permute"
		case AllocScratch:
			text += " scratch"
		}
	}
	return text
}

// newRand is a source of numbers that are the same at every run.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
