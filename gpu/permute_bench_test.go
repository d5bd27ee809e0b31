package gpu_test

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

// permuteJobs turn the key-major order of an allocation into the batch-major order of
// the outputs, by units of a row or of a whole entry.
var permuteJobs = []struct {
	name          string
	keys, batches int
	rows          func(r *rand.Rand) int64
	rowBytes      int64
	entries       bool // units are entries
}{
	{name: "uniform 3.2 GB", keys: 8, batches: 8, rows: fixed(1000), rowBytes: 50176, entries: true},
	{name: "uniform 3.2 GB by rows", keys: 8, batches: 8, rows: fixed(1000), rowBytes: 50176},
	{name: "ragged 3.2 GB", keys: 8, batches: 8, rows: upTo(2000), rowBytes: 50176},
	{name: "ragged 1.9 GB", keys: 16, batches: 16, rows: upTo(280), rowBytes: 50176},
	{name: "ragged 3.3 GB of 2 KB rows", keys: 64, batches: 32, rows: upTo(1600), rowBytes: 2048},
	{name: "ragged 39 MB", keys: 4, batches: 4, rows: upTo(100), rowBytes: 50176},
	{name: "ragged 23 MB", keys: 6, batches: 5, rows: upTo(120), rowBytes: 12544},
	{name: "ragged 1.3 GB of 4098 B rows", keys: 16, batches: 16, rows: upTo(2500), rowBytes: 4098},
	{name: "ragged 1.3 GB of 4100 B rows", keys: 16, batches: 16, rows: upTo(2500), rowBytes: 4100},
	{name: "ragged 1.3 GB of 4104 B rows", keys: 16, batches: 16, rows: upTo(2500), rowBytes: 4104},
	{name: "ragged 650 MB of 1001 B rows", keys: 16, batches: 16, rows: upTo(5000), rowBytes: 1001},
	{name: "ragged 300 MB of 260 B rows", keys: 16, batches: 16, rows: upTo(9000), rowBytes: 260},
	{name: "ragged 43 MB of 1001 B rows", keys: 64, batches: 32, rows: upTo(40), rowBytes: 1001},
	{name: "seed 40 MB", keys: 4, batches: 4, rows: fixed(50), rowBytes: 50176, entries: true},
	{name: "seed 40 MB by rows", keys: 4, batches: 4, rows: fixed(50), rowBytes: 50176},
}

// permuteWays are what a job is timed with besides memcpy: all that a call does, and its
// launch alone, with the tables in place. Whole chains are what devices without
// cooperative launches do.
var permuteWays = []struct {
	name          string
	call, barrier bool
}{
	{name: "call", call: true},
	{name: "launch", barrier: true},
	{name: "launch of whole chains"},
}

// Time is as in BenchmarkGather, with L2 as the call before left it. cold-µs is the
// device's time alone after something else has filled L2, the median of 11. x and cold-x are multiples of
// memcpy's times for the bytes of all entries, those that stay where they are included.
func BenchmarkPermute(b *testing.B) {
	for _, job := range permuteJobs {
		r := rand.New(rand.NewPCG(1, 0))
		rows := make([][]int64, job.keys)
		for k := range rows {
			for range job.batches {
				n := job.rows(r)
				if onFake {
					n = min(n, 2)
				}
				rows[k] = append(rows[k], n)
			}
		}
		unit := job.rowBytes
		if job.entries {
			unit *= rows[0][0]
			for k := range rows {
				rows[k] = slices.Repeat([]int64{1}, job.batches)
			}
		}
		p, bytes := regroup(rows, unit)
		b.Run(job.name, func(b *testing.B) { benchPermute(b, p, bytes) })
	}
}

// regroup returns the permutation of entries of so many units that lie in key-major
// order, and the bytes of all.
func regroup(rows [][]int64, unit int64) (p *flatten.Permutation, bytes int64) {
	starts, end := make([][]int64, len(rows)), int64(0)
	for k := range rows {
		for _, n := range rows[k] {
			starts[k] = append(starts[k], end)
			end += n
		}
	}
	var source []int64
	for b := range rows[0] {
		for k := range rows {
			for i := range rows[k][b] {
				source = append(source, starts[k][b]+i)
			}
		}
	}
	p = &flatten.Permutation{Unit: unit, Grain: int64(1) << min(bits.TrailingZeros64(uint64(unit)), 12)}
	for first := range source {
		n := len(p.Pos)
		for at := int64(first); source[at] >= 0; {
			p.Pos = append(p.Pos, uint32(at*(unit/p.Grain)))
			at, source[at] = source[at], -1
		}
		if len(p.Pos) <= n+1 { // seen before, or stays
			p.Pos = p.Pos[:n]
			continue
		}
		p.Ends, p.Closed = append(p.Ends, int32(len(p.Pos))), append(p.Closed, true)
	}
	return p, end * unit
}

func benchPermute(b *testing.B, p *flatten.Permutation, bytes int64) {
	all := onDevice(b, 0)
	p.Origin = uint64(all.room(bytes))
	var filler uintptr
	if !onFake {
		filler = all.room(fillBytes)
	}
	var warm, cold float64 // memcpy's
	if !onFake {
		other := all.room(bytes)
		b.Run("memcpy", func(b *testing.B) {
			d := onDevice(b, 0)
			warm, cold = d.measure(b, bytes, filler, func() error {
				return cudatest.Copy(other, uintptr(p.Origin), bytes, d.stream)
			})
		})
	}
	for _, way := range permuteWays {
		b.Run(way.name, func(b *testing.B) {
			d := onDevice(b, 0)
			run := func() error { return gpu.Permute(0, d.stream, p) }
			if !way.call {
				launched, done, err := gpu.PreparePermute(way.barrier, 0, d.stream, p)
				d.must(err)
				defer func() { d.must(done()) }()
				run = launched
			}
			w, c := d.measure(b, bytes, filler, run)
			if warm > 0 {
				b.ReportMetric(w/warm, "x")
				b.ReportMetric(c/cold, "cold-x")
			}
		})
	}
}

// fillBytes is more than any L2 has.
const fillBytes = 512 << 20

// measure times what run enqueues, in µs: many in a row, and one at a time behind a fill of L2.
func (d *bench) measure(b *testing.B, bytes int64, filler uintptr, run func() error) (warm, cold float64) {
	b.Helper()
	d.must(run())
	d.wait()
	b.SetBytes(bytes)
	b.ResetTimer()
	for range b.N {
		d.must(run())
	}
	d.wait()
	b.StopTimer()
	if onFake {
		return 0, 0
	}
	warm = float64(b.Elapsed().Microseconds()) / float64(b.N)
	cold = d.afterFill(filler, run)
	b.ReportMetric(cold, "cold-µs")
	return warm, cold
}

// afterFill is the median device time, in µs, of what run enqueues.
func (d *bench) afterFill(filler uintptr, run func() error) float64 {
	clock, err := cudatest.NewClock()
	d.must(err)
	defer func() { d.must(clock.Destroy()) }()
	times := make([]float64, 11)
	for i := range times {
		d.must(cudatest.Fill(filler, fillBytes, d.stream))
		d.must(clock.Start(d.stream))
		d.must(run())
		d.must(clock.Stop(d.stream))
		times[i], err = clock.Microseconds()
		d.must(err)
	}
	slices.Sort(times)
	return times[len(times)/2]
}
