package flatten

import (
	"slices"
	"testing"
)

// chains is a permutation of units of 8 bytes from address 4096 on.
func chains(closed bool, all ...[]uint32) *Permutation {
	p := &Permutation{Unit: 8, Origin: 4096, Grain: 8}
	for _, chain := range all {
		p.Pos = append(p.Pos, chain...)
		p.end(closed)
	}
	return p
}

// Waves through spare places do what the permutation does, however few there are.
func TestWavesEqualThePermutation(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    *Permutation
	}{
		{"a swap", chains(true, []uint32{1, 0})},
		{"a long circle", chains(true, []uint32{5, 3, 1, 0, 7, 2, 6, 4})},
		{"three circles", chains(true, []uint32{0, 1}, []uint32{7, 3, 5}, []uint32{2, 6})},
		{"an open chain", chains(false, []uint32{2, 0, 1})},
		{"open chains", chains(false, []uint32{2, 0, 1}, []uint32{7, 6}, []uint32{3, 4, 5})},
	} {
		for spare := 2; spare < 10; spare++ {
			want := &arena{base: 4096, memory: randomBytes(newRand(1), 64)}
			got := &arena{base: 4096, memory: slices.Clone(want.memory), scratch: make([]byte, 8*spare)}
			places := make([]Addr, spare)
			for i := range places {
				places[i] = Addr{Scratch, uint64(8 * i)}
			}
			steps, ok := tt.p.waves(places)
			if !ok {
				t.Fatalf("%s: no waves through %d places", tt.name, spare)
			}
			for i := range steps {
				reads, writes := steps[i].touches()
				if err := apart(reads, writes); err != nil {
					t.Fatalf("%s through %d places: step %d: %v", tt.name, spare, i, err)
				}
				runMoves(steps[i].Moves, got, 1)
			}
			tt.p.run(want, 1)
			for v := range uint32(8) {
				if !tt.p.Closed[0] && slices.Contains(ends(tt.p), v) {
					continue // what it holds does not matter
				}
				if at := 8 * v; !slices.Equal(got.memory[at:at+8], want.memory[at:at+8]) {
					t.Errorf("%s through %d places: position %d differs", tt.name, spare, v)
				}
			}
		}
	}
	if _, ok := chains(true, []uint32{1, 0}).waves([]Addr{{Scratch, 0}}); ok {
		t.Error("a circle went through one place")
	}
}

// ends is the last position of each chain.
func ends(p *Permutation) (all []uint32) {
	for i := range p.Ends {
		chain := p.chain(i)
		all = append(all, chain[len(chain)-1])
	}
	return all
}

// clip is compared with a look at every byte of the payload.
func TestClip(t *testing.T) {
	rng := newRand(2)
	for range 5000 {
		s := Segment{Bytes: 1 + rng.Int64N(6)}
		if rows := 1 + rng.Int64N(5); rows > 1 {
			s.Axes = []Axis{{N: rows, SrcStep: s.Bytes, DstStep: s.Bytes + rng.Int64N(4)}}
		}
		lo, n := rng.Int64N(50)-10, 1+rng.Int64N(20)
		var want []int64 // bytes of the payload that land in [lo, lo+n)
		for i := range s.Payload() {
			at := i % s.Bytes
			if len(s.Axes) > 0 {
				at += i / s.Bytes * s.Axes[0].DstStep
			}
			if lo <= at && at < lo+n {
				want = append(want, i)
			}
		}
		first, end := s.clip(lo, n)
		if first >= end && len(want) == 0 {
			continue
		}
		if len(want) == 0 || first != want[0] || end != want[len(want)-1]+1 {
			t.Fatalf("%v in [%d, %d): got [%d, %d), want %v", s, lo, lo+n, first, end, want)
		}
	}
}
