package launch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/randjob"
)

// A conversion is elements side by side, from one address to another.
type conversion struct {
	dst, src, elements uint64
	from               flatten.Float
}

// conversions is what kernels do with a launch, as a list: the plain reading of gpu/kernels/cast.cuh.
func conversions(t *testing.T, l *CastLaunch) []conversion {
	t.Helper()
	table, to := l.Table, uint64(l.Kernel.To.Bytes())
	if len(table) != l.Kernel.Words() {
		t.Fatalf("%v: got a table of %d words, want %d", l.Kernel, len(table), l.Kernel.Words())
	}
	all, tile := uint64(table[bytesWord]), uint64(table[tileWord])
	if perBlock := tile * CastThreads / 32; all > maxCastElements || uint64(l.Blocks)*perBlock < all || uint64(l.Blocks-1)*perBlock >= all {
		t.Fatalf("%v: %d blocks of tiles of %d for %d elements", l.Kernel, l.Blocks, tile, all)
	}
	var list []conversion
	for i := range table[segmentsWord] {
		record := table[recordsWord+i*recordWords:]
		end := table[bytesWord]
		if i+1 < table[segmentsWord] {
			end = record[recordWords]
		}
		place := table[record[2]>>16&^stridedBit:]
		c := conversion{
			dst:      number64(place, 0) + uint64(record[0])*to,
			src:      uint64(table[highWord]&0xffff)<<48 | uint64(record[2]&0xffff)<<32 | uint64(record[1]),
			elements: uint64(end - record[0]),
			from:     l.Kernel.From,
		}
		if record[2]>>16&stridedBit == 0 {
			list = append(list, c)
			continue
		}
		list = appendRuns(list, c, place)
	}
	return list
}

// appendRuns appends the runs of a strided segment that begins at c.
func appendRuns(list []conversion, c conversion, place []uint32) []conversion {
	for at := uint32(0); at < uint32(c.elements); at += place[runWord] {
		run := divide(at, place[runDivisorWord:])
		one := conversion{c.dst, c.src, uint64(place[runWord]), c.from}
		for i := range place[shapeWord] & 0xff {
			axis := place[axesWord+i*axisWords:]
			next := divide(run, axis[1:])
			turn := uint64(run - next*axis[0])
			one.src += turn * number64(axis, 3)
			one.dst += turn * number64(axis, 5)
			run = next
		}
		list = append(list, one)
	}
	return list
}

// wantedConversions is what a job says, as a list.
func wantedConversions(job *CastJob) []conversion {
	var list []conversion
	for i := range job.Plan.Segments {
		s := &job.Plan.Segments[i]
		from := job.From[s.Entry]
		var turns func(dst, src int64, axes []flatten.Axis)
		turns = func(dst, src int64, axes []flatten.Axis) {
			if len(axes) == 0 {
				list = append(list, conversion{
					uint64(job.Dst[s.Batch]) + uint64(dst*job.To.Bytes()), uint64(job.Src[s.Entry]) + uint64(src*from.Bytes()),
					uint64(s.Bytes), from,
				})
				return
			}
			for n := range axes[0].N {
				turns(dst+n*axes[0].DstStep, src+n*axes[0].SrcStep, axes[1:])
			}
		}
		turns(s.Dst, s.Src, s.Axes)
	}
	return list
}

// joined sorts conversions by destination and joins those that continue one another.
func joined(list []conversion, to flatten.Float) []conversion {
	slices.SortFunc(list, func(a, b conversion) int {
		if a.dst < b.dst {
			return -1
		}
		return 1
	})
	out := list[:0]
	for _, c := range list {
		if n := len(out); n > 0 && out[n-1].from == c.from && out[n-1].dst+out[n-1].elements*uint64(to.Bytes()) == c.dst &&
			out[n-1].src+out[n-1].elements*uint64(c.from.Bytes()) == c.src {
			out[n-1].elements += c.elements
		} else {
			out = append(out, c)
		}
	}
	return out
}

// checkCast compares what a job's launches convert with what the job says.
func checkCast(t *testing.T, job *CastJob) (names []string) {
	t.Helper()
	var got []conversion
	if err := new(Cast).Run(job, func(l *CastLaunch) error {
		names = append(names, l.Kernel.String())
		got = append(got, conversions(t, l)...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got, want := joined(got, job.To), joined(wantedConversions(job), job.To)
	if !slices.Equal(got, want) {
		t.Fatalf("got %d conversions, want %d: %.200v, want %.200v", len(got), len(want), fmt.Sprint(got), fmt.Sprint(want))
	}
	return names
}

// castOf is a job of a plan in elements whose entries have the given types in turn.
func castOf(plan *flatten.Plan, to flatten.Float, from ...flatten.Float) *CastJob {
	job := &CastJob{Cast: &flatten.Cast{Plan: plan, To: to}, Multiprocessors: 132}
	next := uintptr(0x7f00_0000_0000)
	take := func() uintptr { next += 1 << 34; return next }
	for range plan.Layout.Batches {
		job.Dst = append(job.Dst, take())
	}
	for e := range plan.Layout.Rows {
		job.Src = append(job.Src, take())
		job.From = append(job.From, from[e%len(from)])
	}
	return job
}

// inElements returns the plan of a job of contiguous entries.
func inElements(t *testing.T, batches int, rows []int64, row int64) *flatten.Plan {
	t.Helper()
	l := &flatten.Layout{NumKeys: len(rows) / batches, Batches: batches, RowShape: []int64{row}, Rows: rows}
	p := new(flatten.Plan)
	if err := p.BuildPlain(l.InElements()); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCastRoutes(t *testing.T) {
	const f32, f16, bf16 = flatten.Float32, flatten.Float16, flatten.BFloat16
	small, large := "cast_f32_bf16_4k", "cast_f32_bf16_32k"
	strided := inElements(t, 1, []int64{1}, 1)
	axes := []flatten.Axis{{N: 3, SrcStep: 1 << 33, DstStep: 1 << 32}, {N: 20, SrcStep: 1 << 27, DstStep: 1 << 27}}
	strided.Segments = []flatten.Segment{{Bytes: 1 << 27, Axes: axes}}
	tests := []struct {
		name  string
		job   *CastJob
		names []string
	}{
		{"nothing", castOf(inElements(t, 2, repeat(8, 0), 4), bf16, f32), nil},
		{"seed job", castOf(inElements(t, 4, repeat(16, 50), 12544), bf16, f32), []string{small}},
		{"64 x 32", castOf(inElements(t, 32, repeat(2048, 20), 256), bf16, f32), []string{large}},
		{"mixed types", castOf(inElements(t, 2, repeat(16, 5), 7), bf16, f32, f16, bf16), []string{small, "cast_f16_bf16_4k", "cast_bf16_bf16_4k"}},
		{"many mixed types", castOf(inElements(t, 1, repeat(1000, 5), 7), bf16, f32, f16), []string{large, "cast_f16_bf16_32k"}},
		{"beyond one launch", castOf(inElements(t, 1, repeat(2, 3<<20), 64), bf16, f32), []string{small, small}},
		{"strided beyond one launch", castOf(strided, bf16, f32), slices.Repeat([]string{small}, 60)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := checkCast(t, tt.job); !slices.Equal(got, tt.names) {
				t.Errorf("got %v, want %v", got, tt.names)
			}
		})
	}
}

func TestRandomCasts(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 300 {
		random, err := randjob.NewOf(r, 8)
		if err != nil {
			t.Fatal(err)
		}
		types := make([]flatten.Float, 1+r.IntN(3))
		for i := range types {
			types[i] = flatten.Float(r.IntN(int(flatten.NumFloats)))
		}
		job := castOf(random.Plan, flatten.Float(r.IntN(int(flatten.NumFloats))), types...)
		if !t.Run(fmt.Sprintf("seed %d job %d", seed, i), func(t *testing.T) { checkCast(t, job) }) {
			return
		}
	}
}

func TestCastStopsAtAnError(t *testing.T) {
	failed, calls := errors.New("failed"), 0
	job := castOf(inElements(t, 1, repeat(20_000, 1), 3), flatten.Float16, flatten.Float32)
	err := new(Cast).Run(job, func(*CastLaunch) error {
		if calls++; calls == 3 {
			return failed
		}
		return nil
	})
	if !errors.Is(err, failed) || calls != 3 {
		t.Errorf("got %v after %d launches, want %v after 3", err, calls, failed)
	}
}

func TestCastsOfOtherDevicesStay(t *testing.T) {
	job := castOf(inElements(t, 2, repeat(8, 10), 10), flatten.Float16, flatten.Float32)
	device := func(i int32) flatten.Device { return flatten.Device{Type: flatten.DeviceCUDA, Index: i} }
	job.Plan.Layout.Devices = []flatten.Device{device(0), device(1)}
	for index, want := range map[int32]uint32{0: 400, 1: 400, 2: 0} {
		job.Device = device(index)
		var elements uint32
		if err := new(Cast).Run(job, func(l *CastLaunch) error { elements += l.Table[bytesWord]; return nil }); err != nil || elements != want {
			t.Errorf("device %d: got %d elements, %v, want %d", index, elements, err, want)
		}
	}
}
