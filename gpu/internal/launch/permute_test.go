package launch

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goflat/goflat/flatten"
)

// h200 is what runs at once on 132 multiprocessors.
var h200 = func() *[NumPermuteKernels]uint32 {
	var resident [NumPermuteKernels]uint32
	for k := range NumPermuteKernels {
		resident[k] = 132 * 2048 / BarrierThreads
	}
	return &resident
}()

// chains is a permutation of chains of n positions each, every third a path.
func chains(unit int64, lengths ...int) *flatten.Permutation {
	p := &flatten.Permutation{Unit: unit, Origin: 1 << 40, Grain: unit & -unit}
	for i, n := range lengths {
		for range n {
			p.Pos = append(p.Pos, uint32(len(p.Pos))*uint32(unit/p.Grain))
		}
		p.Ends = append(p.Ends, int32(len(p.Pos)))
		p.Closed = append(p.Closed, i%3 != 2)
	}
	return p
}

func TestPermutePlan(t *testing.T) {
	tests := []struct {
		name     string
		p        *flatten.Permutation
		resident *[NumPermuteKernels]uint32
		kernel   PermuteKernel
		cut      bool
		place    TablePlace
	}{
		{"swaps of entries", chains(50<<20, slices.Repeat([]int{2}, 28)...), h200, Permute16, false, Table4K},
		{"swaps of rows", chains(50176, slices.Repeat([]int{2}, 28000)...), h200, Permute16, false, TableFar},
		{"one cycle of rows", chains(50176, 800), h200, Permute16, true, Table4K},
		{"one cycle without cooperative launches", chains(50176, 800), new([NumPermuteKernels]uint32), Permute16, false, Table4K},
		{"one cycle of units longer than the grid", chains(8<<20, 100), h200, Permute16, false, Table4K},
		{"many short rows", chains(2048, 3000, 3000), h200, Permute16, true, Table32K},
		{"odd rows", chains(1041, 100), h200, PermuteSlice4, true, Table4K},
		{"short odd rows", chains(101, 100), h200, Permute1, true, Table4K},
		{"odd rows in one slice", chains(1001, 100), h200, PermuteSlice2, true, Table4K},
		{"rows of 1000 bytes", chains(1000, 100), h200, Permute8, true, Table4K},
		{"rows of 4104 bytes", chains(4104, 100), h200, PermuteSlice4, true, Table4K},
		{"rows of 8 bytes", chains(24, 100), h200, Permute8, true, Table4K},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := new(Permute)
			if !r.Plan(tt.p, &PermuteOptions{Resident: tt.resident}) {
				t.Fatal("got nothing to do")
			}
			if r.kernel != tt.kernel || r.cut != tt.cut || r.place != tt.place {
				t.Errorf("got %v, cut %v, table %s, want %v, %v, %s", r.kernel, r.cut, r.place.Suffix(), tt.kernel, tt.cut, tt.place.Suffix())
			}
			if got, most := 4*int64(r.TableWords()), tt.p.TableBytes(); got > most {
				t.Errorf("got a table of %d bytes, want at most %d", got, most)
			}
		})
	}
}

func TestPermutePlanOfNothing(t *testing.T) {
	r := new(Permute)
	for _, p := range []*flatten.Permutation{chains(16), chains(16, 1, 1, 1)} {
		if r.Plan(p, &PermuteOptions{Resident: h200}) {
			t.Errorf("%v: got something to do", p.Ends)
		}
	}
}

// Groups follow each other without holes, whole ones begin with chains, and a cut one
// knows the head of the closed chain that it finishes.
func TestPermuteGroups(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		lengths := make([]int, 1+random.IntN(200))
		for i := range lengths {
			lengths[i] = 1 + random.IntN(1+random.IntN(300))
		}
		r := new(Permute)
		if !r.Plan(chains(16*(1+random.Int64N(200)), lengths...), &PermuteOptions{Resident: h200}) {
			continue
		}
		table := make([]uint32, r.TableWords())
		r.Write(table)
		starts := make([]uint32, r.positions+1) // of the chain that a position is in
		for i := range r.positions {
			starts[i+1] = starts[i]
			if table[i]&endBit != 0 {
				starts[i+1] = i + 1
			}
		}
		groups := table[r.positions:]
		for g, v := range groups {
			if !r.cut {
				if v > r.positions || v < r.positions && starts[v] != v || g == 0 && v != 0 || g > 0 && v < groups[g-1] {
					t.Fatalf("seed %d: group %d begins at %d", seed, g, v)
				}
				continue
			}
			from, to := r.bound(uint32(g)), r.bound(uint32(g)+1)
			want := uint32(noHead)
			for i := from; i < to && i < r.closed; i++ {
				if table[i]&endBit != 0 {
					want = starts[from]
					break
				}
			}
			if v != want {
				t.Fatalf("seed %d: group %d, [%d, %d): got head %d, want %d", seed, g, from, to, int32(v), int32(want))
			}
		}
	}
}

func TestPermuteArrivals(t *testing.T) {
	r := new(Permute)
	r.Plan(chains(50176, 800), &PermuteOptions{Resident: h200})
	word := BarrierWord{Address: 1 << 45, Arrivals: 1<<32 - 100}
	for range 3 {
		want := word
		err := r.Launches(&word, 0, func(l *PermuteLaunch) error {
			want.Arrivals += l.Blocks
			at := uint64(l.Parameters[barrierWord]) | uint64(l.Parameters[barrierWord+1])<<32
			if at != want.Address || l.Parameters[arrivalsWord] != want.Arrivals || !l.Cooperative || l.Threads != BarrierThreads {
				t.Errorf("got %d blocks that meet at %#x until %d, want %+v", l.Blocks, at, l.Parameters[arrivalsWord], want)
			}
			return nil
		})
		if err != nil || word != want {
			t.Errorf("got %+v, %v, want %+v", word, err, want)
		}
	}
}

// Units of terabytes take several launches, each below 2^31 threads.
func TestPermuteLaunchesCoverEverything(t *testing.T) {
	for _, p := range []*flatten.Permutation{
		{Unit: 1 << 40, Grain: 4096, Pos: []uint32{0, 1 << 28}, Ends: []int32{2}, Closed: []bool{true}},
		{Unit: 1<<33 + 1, Grain: 1, Pos: []uint32{0, 1, 2, 3, 4, 5}, Ends: []int32{2, 4, 6}, Closed: []bool{true, false, true}},
		chains(3<<20+1, slices.Repeat([]int{2}, 5000)...),
	} {
		r := new(Permute)
		r.Plan(p, &PermuteOptions{Resident: h200})
		var items int64
		err := r.Launches(nil, 0, func(l *PermuteLaunch) error {
			columns, first := l.Parameters[columnsWord], l.Parameters[firstGroupWord]
			turns := int64(l.Blocks) * int64(l.Threads) / int64(columns)
			items += int64(columns) * min(turns, int64(r.groups-first))
			if threads := int64(l.Blocks) * int64(l.Threads); threads >= 1<<31 {
				t.Errorf("got %d threads", threads)
			}
			return nil
		})
		if want := r.columns * int64(r.groups); err != nil || items != want {
			t.Errorf("unit %d: got %d vectors, %v, want %d", p.Unit, items, err, want)
		}
		fails := errors.New("fails")
		calls := 0
		if err := r.Launches(nil, 0, func(*PermuteLaunch) error { calls++; return fails }); !errors.Is(err, fails) || calls != 1 {
			t.Errorf("got %v after %d calls, want the first error", err, calls)
		}
	}
}
