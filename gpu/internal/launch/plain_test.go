package launch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// plainOf is a job of plain entries without its plan.
func plainOf(job *Job) *Plain {
	l := job.Plan.Layout
	return &Plain{Rows: l.Rows, RowBytes: l.RowBytes(), Dst: job.Dst, Src: job.Src, Multiprocessors: job.Multiprocessors}
}

// recorded returns the launches of a run.
func recorded(t *testing.T, run func(func(*Launch) error) error) []Launch {
	t.Helper()
	var launches []Launch
	if err := run(func(l *Launch) error {
		records := recordsWord + recordWords*int(l.Table[segmentsWord])
		if l.Kernel.Narrow() {
			records = narrowRecordsWord + narrowRecordWords*int(l.Table[segmentsWord])
		}
		launches = append(launches, Launch{l.Kernel, l.Blocks, slices.Clone(l.Table[:records])})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return launches
}

// A job without a plan makes the launches that it makes with one.
func TestPlainJobs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	jobs := []*Job{
		plain(t, 1, repeat(70_000, 1), 1), plain(t, 70_000, repeat(70_000, 1), 1), plain(t, 1, repeat(2, 3<<20), 256),
		plain(t, 1, append(repeat(1000, 1), 1<<24), 16), plain(t, 2, repeat(8, 0), 4),
	}
	for range 300 {
		batches := 1 + r.IntN(6)
		rows := make([]int64, batches*(1+r.IntN(40)))
		for e := range rows {
			rows[e] = r.Int64N(1 << (1 + r.IntN(20)))
		}
		jobs = append(jobs, plain(t, batches, rows, 1+r.Int64N(99)))
	}
	for i, job := range jobs {
		place(job, uint64(r.IntN(8))<<26, func() uint64 { return uint64(r.IntN(16)) })
		if r.IntN(4) == 0 { // entries side by side, and addresses that cannot share a table
			for e := range job.Src[1:] {
				job.Src[e+1] = job.Src[e] + uintptr(job.Plan.Layout.Rows[e]*job.Plan.Layout.RowBytes())
			}
			job.Src[r.IntN(len(job.Src))] |= 1 << 60
		}
		var g Gather
		want := recorded(t, func(launch func(*Launch) error) error { return g.Run(job, launch) })
		got := recorded(t, func(launch func(*Launch) error) error { return g.RunPlain(plainOf(job), launch) })
		if !slices.EqualFunc(got, want, func(a, b Launch) bool {
			return a.Kernel == b.Kernel && a.Blocks == b.Blocks && slices.Equal(a.Table, b.Table)
		}) {
			t.Fatalf("seed %d job %d: got %d launches, want %d, or other tables", seed, i, len(got), len(want))
		}
	}
}

func TestPlainRefusesRows(t *testing.T) {
	for _, rows := range [][]int64{{1, -1}, {1 << 60, 1 << 60}, {math.MaxInt64, 0}} {
		var g Gather
		job := &Plain{Rows: rows, RowBytes: 8, Dst: []uintptr{1 << 40}, Src: []uintptr{1 << 41, 1 << 42}, Multiprocessors: 1}
		if err := g.RunPlain(job, func(*Launch) error { t.Errorf("rows %d: launched", rows); return nil }); err == nil {
			t.Errorf("rows %d: got no error", rows)
		}
	}
}

func BenchmarkRunPlain(b *testing.B) {
	for _, size := range []struct {
		name          string
		keys, batches int
	}{{"4x4", 4, 4}, {"64x32", 64, 32}} {
		b.Run(size.name, func(b *testing.B) {
			job := &Plain{Rows: repeat(size.keys*size.batches, 8), RowBytes: 64, Multiprocessors: 132}
			for i := range uintptr(size.batches) {
				job.Dst = append(job.Dst, i<<30)
			}
			for i := range uintptr(size.keys * size.batches) {
				job.Src = append(job.Src, i<<31)
			}
			g, launch := new(Gather), func(*Launch) error { return nil }
			for b.Loop() {
				if err := g.RunPlain(job, launch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
