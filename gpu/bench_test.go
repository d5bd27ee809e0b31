package gpu_test

import (
	"math/rand/v2"
	"testing"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

// benchJobs are the shapes that the kernels were chosen for. On the fake driver they
// shrink to a few rows, so that the benchmark still runs.
var benchJobs = []struct {
	name          string
	keys, batches int
	rows          func(r *rand.Rand) int64
	rowBytes      int64
	dim           int   // 1: the rows lie in blocks, of which there are blocks
	blocks        int64 // of an entry
	shift         uintptr
	align         uintptr // of every entry and output; 0: 512
}{
	{name: "seed 40 MB", keys: 4, batches: 4, rows: fixed(50), rowBytes: 50176},
	{name: "uniform 3.2 GB", keys: 16, batches: 16, rows: fixed(250), rowBytes: 50176},
	{name: "uniform 3.2 GB at 2 MiB", keys: 16, batches: 16, rows: fixed(250), rowBytes: 50176, align: 2 << 20},
	{name: "ragged 1.8 GB at 2 MiB", keys: 16, batches: 16, rows: upTo(280), rowBytes: 50176, align: 2 << 20},
	{name: "ragged 1.8 GB", keys: 16, batches: 16, rows: upTo(280), rowBytes: 50176},
	{name: "64x32 of 512 B", keys: 64, batches: 32, rows: fixed(8), rowBytes: 64},
	{name: "64x32 of 1040-byte rows", keys: 64, batches: 32, rows: upTo(40), rowBytes: 1040},
	{name: "64x32 of 1001-byte rows, sources off by 3", keys: 64, batches: 32, rows: upTo(40), rowBytes: 1001, shift: 3},
	{name: "256x4 of 16 KB", keys: 256, batches: 4, rows: fixed(16), rowBytes: 1024},
	{name: "seed, sources off by 4", keys: 4, batches: 4, rows: fixed(50), rowBytes: 50176, shift: 4},
	{name: "seed along dim 1", keys: 4, batches: 4, rows: fixed(50), rowBytes: 196, dim: 1, blocks: 256},
	{name: "27 x (8192,128) of 4 bytes along dim 1", keys: 27, batches: 1, rows: fixed(128), rowBytes: 4, dim: 1, blocks: 8192},
	{name: "27 x (8192,128) of 2 bytes along dim 1", keys: 27, batches: 1, rows: fixed(128), rowBytes: 2, dim: 1, blocks: 8192},
	{name: "27 x (8192,49) of 4 bytes along dim 1", keys: 27, batches: 1, rows: fixed(49), rowBytes: 4, dim: 1, blocks: 8192},
	{name: "27 x (8192,20..120) of 4 bytes along dim 1", keys: 27, batches: 1, rows: from(20, 120), rowBytes: 4, dim: 1, blocks: 8192},
	{name: "26 x (65536,33) of 2 bytes along dim 1", keys: 26, batches: 1, rows: fixed(33), rowBytes: 2, dim: 1, blocks: 65536},
	{name: "26 x (65536,3) of 1 byte along dim 1", keys: 26, batches: 1, rows: fixed(3), rowBytes: 1, dim: 1, blocks: 65536},
	{name: "8192 sequences of 4-byte tokens in 512 batches", keys: 16, batches: 512, rows: upTo(4000), rowBytes: 4},
	{name: "26 x (65536,33) of 1 byte along dim 1", keys: 26, batches: 1, rows: fixed(33), rowBytes: 1, dim: 1, blocks: 65536},
}

func fixed(rows int64) func(*rand.Rand) int64 {
	return func(*rand.Rand) int64 { return rows }
}

func from(least, most int64) func(*rand.Rand) int64 {
	return func(r *rand.Rand) int64 { return least + r.Int64N(most-least+1) }
}

func upTo(most int64) func(*rand.Rand) int64 {
	return func(r *rand.Rand) int64 { return 1 + r.Int64N(most) }
}

// Time is a call's when many are enqueued one after the other, so the device's if that
// is longer than the host's. The last wait belongs to it, which b.Loop would leave out.
// cold-µs is the device's time alone after something else has filled L2, the median of 11.
// x and cold-x are multiples of memcpy's times for the same bytes.
func BenchmarkGather(b *testing.B) {
	for _, job := range benchJobs {
		r := rand.New(rand.NewPCG(0, 0))
		l := &flatten.Layout{
			NumKeys: job.keys, Batches: job.batches, RowShape: []int64{job.rowBytes},
			DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
		}
		if job.dim == 1 {
			l.Dim, l.RowShape = 1, []int64{job.blocks, job.rowBytes}
		}
		for range job.keys * job.batches {
			rows := job.rows(r)
			if onFake {
				rows = min(rows, 2)
			}
			l.Rows = append(l.Rows, rows)
		}
		b.Run(job.name, func(b *testing.B) { benchGather(b, l, job.shift, max(job.align, 512)) })
	}
}

func benchGather(b *testing.B, l *flatten.Layout, shift, align uintptr) {
	all := onDevice(b, 0)
	plan := new(flatten.Plan)
	all.must(plan.BuildPlain(l))
	dst, src := all.spread(l, shift, align)
	var filler uintptr
	var warm, cold float64 // memcpy's
	if !onFake {
		filler = all.room(fillBytes)
		to, from := all.room(l.Bytes()), all.room(l.Bytes())
		b.Run("memcpy", func(b *testing.B) {
			d := onDevice(b, 0)
			warm, cold = d.measure(b, l.Bytes(), filler, func() error { return cudatest.Copy(to, from, l.Bytes(), d.stream) })
		})
	}
	b.Run("gather", func(b *testing.B) {
		d := onDevice(b, 0)
		w, c := d.measure(b, l.Bytes(), filler, func() error { return gpu.Gather(0, d.stream, plan, dst, src) })
		if warm > 0 {
			b.ReportMetric(w/warm, "x")
			b.ReportMetric(c/cold, "cold-x")
		}
	})
}

// spread returns addresses for a layout's outputs and entries: each a multiple of align,
// entries `shift` bytes past one.
func (b *bench) spread(l *flatten.Layout, shift, align uintptr) (dst, src []uintptr) {
	dst, src = make([]uintptr, l.Batches), make([]uintptr, len(l.Rows))
	var end uintptr
	place := func(bytes int64, shift uintptr) uintptr {
		at := (end+align-1)/align*align + shift
		end = at + uintptr(bytes)
		return at
	}
	for i := range dst {
		dst[i] = place(l.BatchBytes(i), 0)
	}
	for e := range src {
		src[e] = place(l.Rows[e]*l.RowBytes(), shift)
	}
	base := (b.room(int64(end+align)) + align - 1) / align * align
	for i := range dst {
		dst[i] += base
	}
	for e := range src {
		src[e] += base
	}
	return dst, src
}

// room returns device memory that is freed at the end of the benchmark.
func (b *bench) room(bytes int64) uintptr {
	b.t.Helper()
	memory, err := cu.MemAlloc(bytes)
	b.must(err)
	b.t.Cleanup(func() { b.must(cu.MemFree(memory)) })
	return uintptr(memory)
}
