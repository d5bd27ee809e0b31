package gpu_test

import (
	"math/rand/v2"
	"testing"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
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
	{name: "seed, sources off by 4", keys: 4, batches: 4, rows: fixed(50), rowBytes: 50176, shift: 4},
	{name: "seed along dim 1", keys: 4, batches: 4, rows: fixed(50), rowBytes: 196, dim: 1, blocks: 256},
}

func fixed(rows int64) func(*rand.Rand) int64 {
	return func(*rand.Rand) int64 { return rows }
}

func upTo(most int64) func(*rand.Rand) int64 {
	return func(r *rand.Rand) int64 { return 1 + r.Int64N(most) }
}

// Time is a call's when many are enqueued one after the other, so the device's if that
// is longer than the host's. The last wait belongs to it, which b.Loop would leave out.
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
		b.Run(job.name+"/gather", func(b *testing.B) { benchGather(b, l, job.shift, max(job.align, 512)) })
		if !onFake {
			b.Run(job.name+"/memcpy", func(b *testing.B) { benchCopy(b, l.Bytes()) })
		}
	}
}

func benchGather(b *testing.B, l *flatten.Layout, shift, align uintptr) {
	d := onDevice(b, 0)
	plan := new(flatten.Plan)
	d.must(plan.BuildPlain(l))
	dst, src := make([]uintptr, l.Batches), make([]uintptr, len(l.Rows))
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
	base := (d.room(int64(end+align)) + align - 1) / align * align
	for i := range dst {
		dst[i] += base
	}
	for e := range src {
		src[e] += base
	}
	d.must(gpu.Gather(0, d.stream, plan, dst, src))
	d.wait()
	b.SetBytes(l.Bytes())
	b.ResetTimer()
	for range b.N {
		d.must(gpu.Gather(0, d.stream, plan, dst, src))
	}
	d.wait()
}

func benchCopy(b *testing.B, bytes int64) {
	d := onDevice(b, 0)
	to, from := cu.DevicePtr(d.room(bytes)), cu.DevicePtr(d.room(bytes))
	b.SetBytes(bytes)
	b.ResetTimer()
	for range b.N {
		d.must(cu.MemcpyDtoDAsync(to, from, bytes, cu.NoStream))
	}
	d.must(cu.Synchronize())
}

// room returns device memory that is freed at the end of the benchmark.
func (b *bench) room(bytes int64) uintptr {
	b.t.Helper()
	memory, err := cu.MemAlloc(bytes)
	b.must(err)
	b.t.Cleanup(func() { b.must(cu.MemFree(memory)) })
	return uintptr(memory)
}
