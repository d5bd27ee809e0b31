package flatten

import (
	"errors"
	"math/rand/v2"
	"testing"
)

func TestOverlap(t *testing.T) {
	row := func(addr uint64, shape, strides []int64) Memory { return Memory{View{shape, strides}, addr} }
	rows, cols := int64(1_000_000), int64(1000) // of float32, in one buffer of 4 GB
	tests := []struct {
		name string
		a, b Memory
		want bool
	}{
		{"apart", row(0, []int64{4}, nil), row(16, []int64{4}, nil), false},
		{"last byte", row(0, []int64{4}, nil), row(15, []int64{4}, nil), true},
		{"same", row(64, []int64{4}, nil), row(64, []int64{4}, nil), true},
		{"empty inside", row(64, []int64{4}, nil), row(68, []int64{0}, nil), false},
		{"even and odd columns", row(0, []int64{rows, cols / 2}, []int64{4 * cols, 8}), row(4, []int64{rows, cols / 2}, []int64{4 * cols, 8}), false},
		{"even columns and unaligned", row(0, []int64{rows, cols / 2}, []int64{4 * cols, 8}), row(2, []int64{rows, cols / 2}, []int64{4 * cols, 8}), true},
		{"column blocks", row(0, []int64{rows, 250}, []int64{4 * cols, 4}), row(2000, []int64{rows, 250}, []int64{4 * cols, 4}), false},
		{"column blocks that share one column", row(0, []int64{rows, 501}, []int64{4 * cols, 4}), row(2000, []int64{rows, 250}, []int64{4 * cols, 4}), true},
		{"column blocks, every other row", row(0, []int64{rows, 250}, []int64{4 * cols, 4}), row(2000, []int64{rows / 2, 250}, []int64{8 * cols, 4}), false},
		{"reversed rows", row(4*uint64(cols*(rows-1)), []int64{rows, 250}, []int64{-4 * cols, 4}), row(2000, []int64{rows, 250}, []int64{4 * cols, 4}), false},
		{"reversed, meets", row(4*uint64(cols*(rows-1)), []int64{rows, 501}, []int64{-4 * cols, 4}), row(2000, []int64{rows, 250}, []int64{4 * cols, 4}), true},
		{"expanded inside a gap", row(0, []int64{3, 2}, []int64{64, 4}), row(8, []int64{3, 10}, []int64{64, 0}), false},
		{"expanded onto an element", row(0, []int64{3, 3}, []int64{64, 4}), row(8, []int64{3, 10}, []int64{64, 0}), true},
		{"halves of the address space", row(0, []int64{1 << 60}, nil), row(1<<63, []int64{1 << 60}, nil), false},
		{"at the end of the address space", row(1<<63, []int64{1<<60 - 1}, nil), row(1<<63+8, []int64{1 << 60}, []int64{4}), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Overlap(tt.a, tt.b, 4); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if got := Overlap(tt.b, tt.a, 4); got != tt.want {
				t.Errorf("swapped: got %v, want %v", got, tt.want)
			}
		})
	}
}

// touched is every address of a view, with how often it is used.
func touched(m Memory, elem int64) map[uint64]int {
	count := map[uint64]int{}
	eachIndex(m.Shape, func(index []int64) {
		for i := range elem {
			count[m.Addr+uint64(offset(m.View, elem, index)+i)]++
		}
	})
	return count
}

// randomMemory is a small view with wild strides near address 1000.
func randomMemory(rng *rand.Rand) Memory {
	m := Memory{Addr: 1000 + rng.Uint64N(60)}
	for range rng.IntN(4) {
		m.Shape = append(m.Shape, rng.Int64N(5))
		m.Strides = append(m.Strides, rng.Int64N(41)-20)
	}
	return m
}

func TestOverlapAgainstEveryByte(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	hits := 0
	for range 20000 {
		a, b, elem := randomMemory(rng), randomMemory(rng), 1+rng.Int64N(6)
		want := false
		inA := touched(a, elem)
		for at := range touched(b, elem) {
			want = want || inA[at] > 0
		}
		if got := Overlap(a, b, elem); got != want {
			t.Fatalf("Overlap(%+v, %+v, %d): got %v, want %v", a, b, elem, got, want)
		}
		if want {
			hits++
		}
	}
	if hits < 2000 || hits > 18000 {
		t.Errorf("%d of 20000 pairs overlap: the draw tests little", hits)
	}
}

func TestOverlapsItselfAgainstEveryByte(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var n nest
	for range 20000 {
		m, elem := randomMemory(rng), 1+rng.Int64N(4)
		if m.empty() {
			continue
		}
		want := false
		for _, count := range touched(m, elem) {
			want = want || count > 1
		}
		n.single(m.View, elem)
		if got := n.overlapsItself(); got != want {
			t.Fatalf("%+v of %d bytes: got %v, want %v", m, elem, got, want)
		}
	}
}

func TestCheckOverlap(t *testing.T) {
	l := &Layout{Keys: []string{"p2", "p3"}, NumKeys: 2, Batches: 2, Rows: []int64{2, 2, 2, 2}, DType: float32s}
	at := func(addrs ...uint64) (list []Memory) {
		for _, addr := range addrs {
			list = append(list, Memory{View{Shape: []int64{2}}, addr})
		}
		return list
	}
	outs := func(x, y Memory) []Memory { return []Memory{x, y} }
	plain := func(addr uint64) Memory { return Memory{View{Shape: []int64{4}}, addr} }
	tests := []struct {
		name       string
		outs, in   []Memory
		key, batch int // -2 for no error
	}{
		{"apart", outs(plain(0), plain(16)), at(32, 40, 48, 56), -2, -2},
		{"same entry twice", outs(plain(0), plain(16)), at(32, 32, 32, 32), -2, -2},
		{"entry of its own output", outs(plain(0), plain(16)), at(32, 8, 48, 56), 0, 1},
		{"entry half in the last output", outs(plain(16), plain(0)), at(32, 40, 48, 28), 1, 1},
		{"outputs", outs(plain(8), plain(0)), at(32, 40, 48, 56), -1, 1},
		{"interleaved outputs", outs(Memory{View{[]int64{4}, []int64{8}}, 0}, Memory{View{[]int64{4}, []int64{8}}, 4}), at(32, 40, 48, 56), -2, -2},
		{"entry in one of interleaved outputs", outs(Memory{View{[]int64{4}, []int64{8}}, 0}, Memory{View{[]int64{4}, []int64{8}}, 4}), at(32, 40, 0, 56), 1, 0},
		{"far output reaches over a near one", outs(Memory{View{[]int64{4}, []int64{1 << 20}}, 0}, plain(16)), at(1<<20, 40, 48, 56), 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := l.CheckOverlap(tt.outs, tt.in)
			var overlap *OverlapError
			switch {
			case tt.key == -2 && err != nil:
				t.Errorf("got %v, want none", err)
			case tt.key == -2:
			case !errors.As(err, &overlap) || !errors.Is(err, ErrOverlap):
				t.Errorf("got %v, want an OverlapError", err)
			case overlap.Key != tt.key || overlap.Batch != tt.batch:
				t.Errorf("got %v, want key %d, batch %d", err, tt.key, tt.batch)
			}
		})
	}
}

// Thirty steps that do not nest and a byte that no sum of them reaches: too much to
// search, so the answer comes soon and is the safe one.
func TestOverlapGivesUpInTime(t *testing.T) {
	a := Memory{Addr: 0}
	for i := range int64(30) {
		a.Shape = append(a.Shape, 2)
		a.Strides = append(a.Strides, 1<<20+2*i*i*i+2*i)
	}
	odd := Memory{View{Shape: []int64{1}}, 15<<20 + 1}
	if !Overlap(a, odd, 1) {
		t.Error("got false, want true: 2^30 sums cannot have been searched")
	}
}
