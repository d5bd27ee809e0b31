package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
)

// A consumer is a job whose entries lie one behind the other in an allocation of a
// device, and the memory that its plan asks for.
type consumer struct {
	layout  *flatten.Layout
	places  []flatten.Place
	blocks  []flatten.Block
	b       *bench
	outs    []uintptr // of spilled outputs
	scratch uintptr
}

// newConsumer puts a random job on a device and returns what the outputs must become.
// Entries begin at multiples of round bytes and lie in so many ranges; behind them is
// some free room.
func newConsumer(t *testing.T, r *rand.Rand, rowBytes, round int64, ranges int, room int64) (c *consumer, want [][]byte) {
	t.Helper()
	l := &flatten.Layout{
		NumKeys: 1 + r.IntN(6), Batches: 1 + r.IntN(6), RowShape: []int64{rowBytes},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}
	c = &consumer{layout: l, b: onDevice(t, 0), outs: make([]uintptr, l.Batches)}
	entries := l.NumKeys * l.Batches
	most, same := 1+r.Int64N(40), r.IntN(3) == 0
	src, starts, end := make([][]byte, entries), make([]int64, entries), int64(0)
	var memory []byte
	for e := range entries {
		rows := r.Int64N(most + 1)
		if same {
			rows = most
		}
		l.Rows = append(l.Rows, rows)
		contents := newBuffer(r, (rows*rowBytes+round-1)/round*round, 0, 0).all
		src[e], starts[e] = contents[:rows*rowBytes], end
		memory = append(memory, contents...)
		end = int64(len(memory))
	}
	at := uint64(c.b.alloc(append(memory, make([]byte, room+1)...)))
	for e := range entries {
		hi := at + uint64(end)
		if e+1 < entries {
			hi = at + uint64(starts[e+1])
		}
		c.places = append(c.places, flatten.Place{Addr: at + uint64(starts[e]), Block: e})
		c.blocks = append(c.blocks, flatten.Block{Lo: at + uint64(starts[e]), Hi: hi, Range: e * ranges / entries, Bytes: int64(len(src[e]))})
	}
	c.blocks = append(c.blocks, flatten.Block{Lo: at + uint64(end), Hi: at + uint64(end+room), Range: ranges - 1})
	return c, plainly(t, l, src)
}

// plainly is what the outputs are if memory is no matter.
func plainly(t *testing.T, l *flatten.Layout, src [][]byte) [][]byte {
	t.Helper()
	p := new(flatten.Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	dst := make([][]byte, l.Batches)
	for b := range dst {
		dst[b] = make([]byte, l.BatchBytes(b))
	}
	flatten.Apply(dst, src, p)
	return dst
}

// run does the steps of a plan.
func (c *consumer) run(p *flatten.InPlace) {
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Kind {
		case flatten.Alloc:
			c.outs[s.Batch] = c.b.room(max(c.layout.BatchBytes(s.Batch), 1))
		case flatten.AllocScratch:
			c.scratch = c.b.room(p.Scratch)
		case flatten.Gather:
			moves := make([]flatten.Move, len(s.Moves))
			for k, m := range s.Moves {
				moves[k] = m
				moves[k].Dst, moves[k].Src = c.absolute(m.Dst), c.absolute(m.Src)
			}
			c.b.must(gpu.Moves(0, c.b.stream, moves))
		case flatten.Permute:
			c.b.must(gpu.Permute(0, c.b.stream, s.Perm))
		}
	}
	c.b.wait()
}

func (c *consumer) absolute(a flatten.Addr) flatten.Addr {
	switch {
	case a.Base >= 0:
		a.Off += uint64(c.outs[a.Base])
	case a.Base == flatten.Scratch:
		a.Off += uint64(c.scratch)
	}
	return flatten.Addr{Base: flatten.Absolute, Off: a.Off}
}

// Plans in place come out on a device as the plain plan does elsewhere, whatever their steps.
func TestInPlacePlans(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	strategies, steps := map[string]int{}, map[flatten.StepKind]int{}
	for i := range 300 {
		fine := t.Run(fmt.Sprint(i), func(t *testing.T) {
			rowBytes := []int64{1, 7, 16, 48, 512, 1041, 2048}[r.IntN(7)]
			round := []int64{1, 16, 512}[r.IntN(3)]
			c, want := newConsumer(t, r, rowBytes, round, 1+r.IntN(8)/5, r.Int64N(2)*r.Int64N(20_000))
			o := flatten.Options{Cooperative: r.IntN(4) > 0, ScratchBytes: flatten.DefaultScratchBytes}
			p, err := flatten.PlanInPlace(c.layout, nil, c.places, c.blocks, o)
			if err != nil {
				t.Fatal(err)
			}
			strategies[p.Strategy]++
			for k := range p.Steps {
				steps[p.Steps[k].Kind]++
			}
			c.verify(t, p, want)
		})
		if !fine {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%v, steps by kind %v", strategies, steps)
	for _, kind := range []flatten.StepKind{flatten.Alloc, flatten.AllocScratch, flatten.Gather, flatten.Permute} {
		if steps[kind] == 0 {
			t.Errorf("no plan has a step of kind %d", kind)
		}
	}
	if onFake {
		if n := fakecuda.DamagedGuards(); n > 0 {
			t.Errorf("%d guard bytes changed", n)
		}
	}
}

// verify runs a plan and compares the outputs.
func (c *consumer) verify(t *testing.T, p *flatten.InPlace, want [][]byte) {
	t.Helper()
	c.run(p)
	for b := range want {
		if len(want[b]) == 0 {
			continue
		}
		got := make([]byte, len(want[b]))
		c.b.read(got, uintptr(c.absolute(p.Outs[b]).Off))
		if i := firstDifference(got, want[b]); i >= 0 {
			t.Fatalf("output %d, byte %d of %d: got %#x, want %#x\n%v", b, i, len(got), got[i], want[b][i], p)
		}
	}
}
