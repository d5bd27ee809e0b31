package flatten

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// leftOut is the bytes that an assignment leaves out, -1 if a bin does not hold its items.
func leftOut(sizes []int64, bins []bin, in []int) (out int64) {
	taken := make([]int64, len(bins))
	for i, b := range in {
		if b < 0 {
			out += sizes[i]
		} else {
			taken[b] += roundUp(sizes[i], bins[b].step)
		}
	}
	for b := range bins {
		if taken[b] > int64(bins[b].hi-bins[b].lo) {
			return -1
		}
	}
	return out
}

// leastLeftOut tries every assignment.
func leastLeftOut(sizes []int64, bins []bin) int64 {
	in := make([]int, len(sizes))
	least := int64(-1)
	var try func(i int)
	try = func(i int) {
		if i == len(in) {
			if out := leftOut(sizes, bins, in); out >= 0 && (least < 0 || out < least) {
				least = out
			}
			return
		}
		for in[i] = -1; in[i] < len(bins); in[i]++ {
			try(i + 1)
		}
	}
	try(0)
	return least
}

func TestPackLeavesOutLeast(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		sizes, bins := make([]int64, 1+rng.IntN(6)), make([]bin, rng.IntN(4))
		for i := range sizes {
			sizes[i] = 1 + rng.Int64N(50)
		}
		for i := range bins {
			bins[i] = bin{100, 100 + uint64(rng.IntN(110)), 1 + rng.Int64N(8)}
		}
		got := leftOut(sizes, bins, pack(sizes, bins))
		if want := leastLeftOut(sizes, bins); got != want {
			t.Fatalf("%v into %+v: left out %d, want %d", sizes, bins, got, want)
		}
	}
}

func TestPack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sizes []int64
		rooms []uint64
		want  int64 // bytes left out
	}{
		{"nothing", nil, []uint64{5}, 0},
		{"no bins", []int64{3, 4}, nil, 7},
		{"best fit takes the fuller bin", []int64{5, 3}, []uint64{8, 3}, 0},
		{"best fit decreasing is not enough", []int64{4, 4, 3, 3, 3, 3}, []uint64{10, 10}, 0},
		{"one is too large", []int64{9, 2}, []uint64{8}, 9},
		{"the larger of two goes in", []int64{5, 6}, []uint64{6}, 5},
		{"two small ones beat a large one", []int64{5, 3, 3}, []uint64{6}, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bins := make([]bin, len(tt.rooms))
			for i, room := range tt.rooms {
				bins[i] = bin{0, room, 1}
			}
			if got := leftOut(tt.sizes, bins, pack(tt.sizes, bins)); got != tt.want {
				t.Errorf("got %d bytes left out, want %d", got, tt.want)
			}
		})
	}
}

// Many outputs and many runs: the search must give up in time.
func TestPackLargeJobs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	sizes, bins := make([]int64, 5000), make([]bin, 5000)
	for i := range sizes {
		sizes[i] = 1 + rng.Int64N(1000)
		bins[i] = bin{0, 900, 1}
	}
	if out := leftOut(sizes, bins, pack(sizes, bins)); out < 0 || out > 500_000 {
		t.Errorf("got %d bytes left out", out)
	}
}

// peak is how far the level rises above where it was.
func peak(spills []spill, order []int) (most int64) {
	var level int64
	for _, b := range order {
		for _, s := range spills {
			if s.batch == b {
				level += s.alloc
				most = max(most, level)
				level -= s.free
			}
		}
	}
	return most
}

func TestLowestPeakIsLowest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		spills := make([]spill, 1+rng.IntN(6))
		for i := range spills {
			spills[i] = spill{i, rng.Int64N(20), rng.Int64N(20)}
		}
		got := peak(spills, lowestPeak(slices.Clone(spills)))
		if want := leastPeak(spills); got != want {
			t.Fatalf("%+v: got %d, want %d", spills, got, want)
		}
	}
}

// leastPeak tries every order.
func leastPeak(spills []spill) int64 {
	order := make([]int, len(spills))
	for i := range order {
		order[i] = i
	}
	least := peak(spills, order)
	var try func(i int)
	try = func(i int) {
		if i == len(order) {
			least = min(least, peak(spills, order))
			return
		}
		for k := i; k < len(order); k++ {
			order[i], order[k] = order[k], order[i]
			try(i + 1)
			order[i], order[k] = order[k], order[i]
		}
	}
	try(0)
	return least
}
