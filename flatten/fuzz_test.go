package flatten

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// A decoder makes a job of raw bytes: small numbers from one byte each, and now
// and then any 64 bits, so that sizes that cannot be are tried too. It reads
// zeros beyond its end.
type decoder struct{ data []byte }

func (d *decoder) next() byte {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b
}

// below is a number from 0 up to n-1.
func (d *decoder) below(n int) int { return int(d.next()) % n }

// number is mostly small: 0 to 9, sometimes negative or huge.
func (d *decoder) number(small int64) int64 {
	switch b := d.next(); {
	case b < 240:
		return int64(b) % small
	case b < 250:
		return -int64(b-239) * 3
	default:
		var word [8]byte
		for i := range word {
			word[i] = d.next()
		}
		return int64(binary.LittleEndian.Uint64(word[:]))
	}
}

// job decodes entries that may or may not fit together, with a dim for NewLayout.
func (d *decoder) job() *job {
	sizes := []DType{{CodeUint, 8, 1}, {CodeFloat, 16, 1}, {CodeFloat, 32, 1}, {CodeFloat, 64, 1}, {CodeUint, 8, 3}, {CodeComplex, 128, 1}}
	dtype := sizes[d.below(len(sizes))]
	keys := 1 + d.below(4)
	j := &job{batches: 1 + d.below(3)}
	shape := make([]int64, 1+d.below(7))
	for i := range shape {
		shape[i] = d.number(5)
	}
	j.dim = d.below(len(shape)+1) - d.below(2)*len(shape)
	for range keys * j.batches {
		v := View{Shape: append([]int64(nil), shape...)}
		v.Shape[max(j.dim, 0)%len(shape)] = d.number(5)
		v = d.disturb(v)
		j.entries = append(j.entries, Entry{View: v, DType: dtype})
	}
	return j
}

// disturb gives a view strides, or another shape.
func (d *decoder) disturb(v View) View {
	switch d.below(8) {
	case 0:
		v.Shape = []int64{0}
	case 1, 2, 3:
		v.Strides = d.strides(len(v.Shape))
	}
	return v
}

func (d *decoder) strides(n int) []int64 {
	strides := make([]int64, n)
	for i := range strides {
		strides[i] = d.number(64)
	}
	return strides
}

// outs decodes an output view for each batch of a layout, or none.
func (d *decoder) outs(l *Layout) []View {
	if d.below(2) == 0 {
		return nil
	}
	outs := make([]View, l.Batches)
	for b := range outs {
		outs[b].Shape = l.OutShape(b)
		if d.below(3) > 0 {
			outs[b].Strides = d.strides(len(outs[b].Shape))
		}
	}
	return outs
}

// small reports whether the job is worth running: its elements few, and its
// memory no more than some pages.
func (j *job) small(l *Layout) bool {
	elem := l.DType.ElemBytes()
	left := int64(1 << 14)
	fits := func(v View) bool {
		lo, hi, reachable := v.span(elem)
		n, ok := product(v.Shape, elem)
		left -= n
		return ok && reachable && n < 1<<14 && hi-lo < 1<<16 && left > 0
	}
	for e := range j.entries {
		if !fits(j.entries[e].View) {
			return false
		}
	}
	for b := range l.Batches {
		if !fits(j.out(l, b)) {
			return false
		}
	}
	return true
}

// splits reports whether a plan could have many segments for one entry: with more
// than MaxAxes dims and so many elements that the test had better not try.
func (j *job) splits(l *Layout) bool {
	n, ok := product(l.RowShape, 1)
	return len(l.RowShape) >= MaxAxes && (!ok || n > 1<<16 || l.Bytes()/l.DType.ElemBytes() > 1<<16)
}

// selfOverlaps reports whether two elements of a small view share a byte.
func selfOverlaps(v View, elem int64) bool {
	for _, count := range touched(Memory{View: v, Addr: 1 << 40}, elem) {
		if count > 1 {
			return true
		}
	}
	return false
}

// FuzzPlan builds a plan from whatever the bytes say. It may refuse, never panic;
// a plan keeps its invariants, Apply equals the naive copy, and Execute equals Apply.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &decoder{data}
		j := d.job()
		l, err := NewLayout(nil, j.batches, j.entries, j.dim)
		if err != nil {
			return
		}
		j.dim = l.Dim
		j.outs = d.outs(l)
		if j.splits(l) {
			return
		}
		p, err := NewPlan(l, j.entries, j.outs)
		if j.outs != nil && j.small(l) {
			checkRefusal(t, j, l, err)
		}
		if err != nil {
			return
		}
		if !j.small(l) {
			if err := p.verify(j.entries, j.outs); err != nil {
				t.Fatal(err)
			}
			return
		}
		for e := range j.entries {
			lo, hi := j.entries[e].Span(l.DType.ElemBytes())
			j.src = append(j.src, make([]byte, hi-lo))
			for i := range j.src[e] {
				j.src[e][i] = byte(31*i + 7*e + 1)
			}
		}
		checkJob(t, j, l, p)
	})
}

// checkRefusal makes sure that outputs are refused exactly if one overlaps itself.
func checkRefusal(t *testing.T, j *job, l *Layout, err error) {
	t.Helper()
	want := false
	for b := range j.outs {
		want = want || selfOverlaps(j.outs[b], l.DType.ElemBytes())
	}
	if got := errors.Is(err, ErrOverlap); got != want {
		t.Errorf("outputs %+v overlap themselves: got %v, want %v", j.outs, err, want)
	}
}

// FuzzOverlap compares Overlap with a look at every byte of two small views.
func FuzzOverlap(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &decoder{data}
		elem := int64(1 + d.below(8))
		var views [2]Memory
		for i := range views {
			views[i].Addr = 1<<40 + uint64(d.next())
			views[i].Shape = make([]int64, d.below(5))
			for dim := range views[i].Shape {
				views[i].Shape[dim] = int64(d.below(6))
			}
			views[i].Strides = d.strides(len(views[i].Shape))
			if lo, hi, ok := views[i].span(elem); !ok || hi-lo > 1<<39 {
				return // it would reach around the address space
			}
		}
		want := false
		first := touched(views[0], elem)
		for at := range touched(views[1], elem) {
			want = want || first[at] > 0
		}
		if got := Overlap(views[0], views[1], elem); got != want {
			t.Errorf("%+v, %d bytes: got %v, want %v", views, elem, got, want)
		}
	})
}

// FuzzInPlace plans a small job in some memory and runs the plan on it.
func FuzzInPlace(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		(&decoder{data}).memoryJob().check(t, rand.New(rand.NewPCG(1, 2)))
	})
}

// FuzzInPlaceAnywhere plans jobs whose sizes, places and blocks may be anything. The
// planner may refuse, never panic or take long, and a plan keeps its invariants.
func FuzzInPlaceAnywhere(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &decoder{data}
		m := d.memoryJob()
		if d.below(2) == 0 {
			d.stretch(m)
		}
		for range d.below(4) {
			d.spoil(m)
		}
		begin := time.Now()
		p, err := PlanInPlace(m.layout, m.entries, m.places, m.blocks, m.o)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("planning took %v\n%v", took, m)
		}
		if err != nil {
			return
		}
		if err := p.verify(); err != nil {
			t.Fatalf("%v\n%v\n%v", err, m, p)
		}
	})
}

// stretch makes everything in the job larger by the same factor.
func (d *decoder) stretch(m *memoryJob) {
	factor := int64(1) << d.below(40)
	for e := range m.layout.Rows {
		m.layout.Rows[e] *= factor
		m.places[e].Addr *= uint64(factor)
	}
	for i := range m.blocks {
		b := &m.blocks[i]
		b.Lo *= uint64(factor)
		b.Hi *= uint64(factor)
		b.Bytes *= factor
	}
	m.entries = nil
	m.o.ScratchBytes *= factor
}

// spoil changes one number of the job to anything.
func (d *decoder) spoil(m *memoryJob) {
	n := d.number(200)
	e := d.below(len(m.places))
	switch d.below(8) {
	case 0:
		m.places[e].Addr = uint64(n)
	case 1:
		m.places[e].Block = int(n)
	case 2:
		m.layout.Rows[e] = n
	case 3:
		m.places[e].Addr += uint64(n)
	case 4:
		m.o.ScratchBytes = n
	default:
		if len(m.blocks) > 0 {
			d.spoilBlock(&m.blocks[d.below(len(m.blocks))], n)
		}
	}
}

func (d *decoder) spoilBlock(b *Block, n int64) {
	switch d.below(6) {
	case 0:
		b.Lo = uint64(n)
	case 1:
		b.Hi = uint64(n)
	case 2:
		b.Bytes = n
	case 3:
		b.Lo += uint64(n)
	case 4:
		b.Hi += uint64(n)
	default:
		b.Range = int(n)
	}
}
