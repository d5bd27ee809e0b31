package launch

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Jobs of many segments whose lengths and addresses are multiples of anything, in few and many
// outputs, near each other and far apart.
func TestNarrowJobs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	narrow := 0
	for i := range 100 {
		batches := 1 + r.IntN(1<<r.IntN(9))
		rows := make([]int64, batches*(1+(350+r.IntN(6000))/batches))
		for e := range rows {
			rows[e] = int64(r.IntN(20))
		}
		job := plain(t, batches, rows, 1<<r.IntN(12))
		unit := uint64(1) << r.IntN(10)
		place(job, 1<<(18+r.IntN(16)), func() uint64 { return r.Uint64N(1000) * unit })
		t.Run(fmt.Sprintf("seed %d job %d", seed, i), func(t *testing.T) {
			for _, name := range check(t, job) {
				if strings.Contains(name, "narrow") {
					narrow++
				}
			}
		})
	}
	if narrow == 0 {
		t.Error("got no launch with narrow records")
	}
}

func TestSpread(t *testing.T) {
	tests := []struct {
		name             string
		sources          []uint64
		length           uint64
		segments, places int
		bytes            int64
		want             narrow
		ok               bool
	}{
		{"aligned", []uint64{0x7f0000001000, 0x7f0000000200}, 512, 2048, 32, 1 << 20, narrow{0x7f0000000200, 9, 9, 5}, true},
		{"one place", []uint64{512, 1024}, 3, 1000, 1, 3000, narrow{512, 9, 0, 1}, true},
		{"as far as it goes", []uint64{16, 16 + 16*(1<<32-1)}, 1, 1000, 1, 3000, narrow{16, 4, 0, 1}, true},
		{"farther", []uint64{16, 32, 16 + 16<<32}, 1, 1000, 1, 3000, narrow{}, false},
		{"odd and long", []uint64{1, 2}, 1, 1000, 1000, 1<<22 + 1, narrow{}, false},
		{"odd and not so long", []uint64{1, 2}, 1, 1000, 1000, 1 << 22, narrow{1, 0, 0, 10}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s spread
			for _, src := range tt.sources {
				s.segment(src, 0, tt.length)
			}
			n, ok := s.narrow(tt.segments, tt.places, tt.bytes)
			if ok != tt.ok || ok && n != tt.want {
				t.Errorf("got %+v, %v, want %+v, %v", n, ok, tt.want, tt.ok)
			}
		})
	}
}
