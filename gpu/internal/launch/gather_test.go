package launch

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/randjob"
)

// A move is contiguous bytes from one address to another.
type move struct{ dst, src, bytes uint64 }

// number64 reads a 64-bit number of a table.
func number64(table []uint32, at uint32) uint64 {
	return uint64(table[at+1])<<32 | uint64(table[at])
}

// divide is the kernels' division.
func divide(n uint32, divisor []uint32) uint32 {
	high, _ := bits.Mul32(n, divisor[0])
	return (high + n) >> divisor[1]
}

// moves is what a kernel does with a launch, as a list: the plain reading of
// gpu/kernels/table.cuh.
func moves(t *testing.T, l *Launch) []move {
	t.Helper()
	table := l.Table
	if len(table) != l.Kernel.Words() {
		t.Fatalf("%v: got a table of %d words, want %d", l.Kernel, len(table), l.Kernel.Words())
	}
	checkGrid(t, l)
	read := readRecord
	if kernels[l.Kernel].form == narrowForm {
		read = readNarrow
	}
	var list []move
	for i := range table[segmentsWord] {
		first, src, place := read(table, i)
		end := table[bytesWord]
		if i+1 < table[segmentsWord] {
			end, _, _ = read(table, i+1)
		}
		if first >= end {
			t.Fatalf("%v: segment %d has the numbers [%d, %d)", l.Kernel, i, first, end)
		}
		strided := place&stridedBit != 0
		if f := kernels[l.Kernel].form; f != mixedForm && strided != (f >= piecesForm) {
			t.Fatalf("%v: got a strided segment: %v", l.Kernel, strided)
		}
		dst := number64(table, place&^stridedBit)
		if !strided {
			list = append(list, move{dst + uint64(first), src, uint64(end - first)})
			continue
		}
		list = append(list, stridedMoves(t, l.Kernel, table[place&^stridedBit:], dst, src, end-first)...)
	}
	return list
}

func readRecord(table []uint32, i uint32) (first uint32, src uint64, place uint32) {
	r := table[recordsWord+i*recordWords:]
	return r[0], uint64(table[highWord]&0xffff)<<48 | uint64(r[2]&0xffff)<<32 | uint64(r[1]), r[2] >> 16
}

func readNarrow(table []uint32, i uint32) (first uint32, src uint64, place uint32) {
	r := table[narrowRecordsWord+i*narrowRecordWords:]
	numbers, sources, places := table[bitsWord]&0xff, table[bitsWord]>>8&0xff, table[bitsWord]>>16
	first = r[1] >> places << numbers
	src = number64(table, lowWord) + uint64(r[0])<<sources
	return first, src, table[firstPlaceWord] - placeWords*(r[1]&(1<<places-1))
}

// checkGrid checks that the grid covers a launch's numbers, and no more than a block too many.
func checkGrid(t *testing.T, l *Launch) {
	t.Helper()
	numbers, tile, least := uint64(l.Table[bytesWord]), uint64(l.Table[tileWord]), uint64(16)
	if kernels[l.Kernel].form == piecesForm {
		least = 1
	}
	if numbers == 0 || numbers > maxNumbers || tile < least || tile&(tile-1) != 0 {
		t.Fatalf("%v: %d numbers in tiles of %d", l.Kernel, numbers, tile)
	}
	tiles := (numbers + tile - 1) / tile
	perBlock := uint64(l.Kernel.Threads() / kernels[l.Kernel].lanes)
	if warps := uint64(l.Blocks) * perBlock; warps < tiles || warps-tiles >= perBlock {
		t.Fatalf("%v: %d blocks take %d tiles, want %d", l.Kernel, l.Blocks, warps, tiles)
	}
}

func stridedMoves(t *testing.T, k Kernel, place []uint32, dst, src uint64, n uint32) []move {
	t.Helper()
	runBytes, perRun, shape := place[runWord], place[perRunWord], place[shapeWord]
	unit := uint64(1) << (shape >> 8 & 0xff)
	checkNumbers(t, k, runBytes, perRun, shape)
	var list []move
	for at := uint32(0); at < n; at += perRun {
		run := divide(at, place[runDivisorWord:])
		if run != at/perRun || divide(at+perRun-1, place[runDivisorWord:]) != run {
			t.Fatalf("divide(%d) by %d: got %d, want %d", at, perRun, run, at/perRun)
		}
		m := move{dst, src, uint64(runBytes)}
		for i := range shape & 0xff {
			axis := place[axesWord+i*axisWords:]
			next := divide(run, axis[1:])
			turn := uint64(run - next*axis[0])
			m.src += turn * number64(axis, 3)
			m.dst += turn * number64(axis, 5)
			run = next
		}
		if m.dst%unit != 0 || m.src%unit != 0 || m.bytes%unit != 0 {
			t.Fatalf("unit %d does not divide %+v", unit, m)
		}
		list = append(list, m)
	}
	return list
}

// checkNumbers checks that the numbers of a run stand for all its bytes.
func checkNumbers(t *testing.T, k Kernel, runBytes, perRun, shape uint32) {
	t.Helper()
	unit := uint32(1) << (shape >> 8 & 0xff)
	var ok bool
	switch kernels[k].form {
	case mixedForm:
		ok = perRun == runBytes
	case piecesForm:
		piece := shape >> 16 * 16
		ok = perRun*piece >= runBytes && (perRun-1)*piece < runBytes && piece <= pieceBytes
	case vectorsForm:
		ok = perRun*slotBytes == runBytes && unit == slotBytes
	case slotsForm:
		ok = covers(perRun, slotBytes, runBytes+slotBytes-1)
	case unitsForm:
		ok = (unit == 4 || unit == 8) && perRun*unit == runBytes
	}
	if !ok {
		t.Fatalf("%v: %d numbers for a run of %d bytes, shape %#x", k, perRun, runBytes, shape)
	}
}

// covers reports whether so many numbers of a size are as many as it takes for the bytes.
func covers(numbers, size, bytes uint32) bool {
	return numbers*size >= bytes && (numbers-1)*size < bytes
}

// wanted is what a job's plan says, as a list.
func wanted(job *Job) []move {
	var list []move
	for i := range job.Plan.Segments {
		s := &job.Plan.Segments[i]
		devices := job.Plan.Layout.Devices
		if devices != nil && devices[s.Batch] != job.Device {
			continue
		}
		at := move{uint64(job.Dst[s.Batch]) + uint64(s.Dst), uint64(job.Src[s.Entry]) + uint64(s.Src), uint64(s.Bytes)}
		list = appendTurns(list, at, s.Axes)
	}
	return list
}

func appendTurns(list []move, at move, axes []flatten.Axis) []move {
	if len(axes) == 0 {
		return append(list, at)
	}
	for range axes[0].N {
		list = appendTurns(list, at, axes[1:])
		at.dst += uint64(axes[0].DstStep)
		at.src += uint64(axes[0].SrcStep)
	}
	return list
}

// canonical sorts moves by destination and joins those that continue one another.
func canonical(list []move) []move {
	slices.SortFunc(list, func(a, b move) int {
		if a.dst < b.dst {
			return -1
		}
		return 1
	})
	joined := list[:0]
	for _, m := range list {
		if n := len(joined); n > 0 && joined[n-1].dst+joined[n-1].bytes == m.dst && joined[n-1].src+joined[n-1].bytes == m.src {
			joined[n-1].bytes += m.bytes
		} else {
			joined = append(joined, m)
		}
	}
	return joined
}

// launchesOf runs a job and returns what was launched and what that moves.
func launchesOf(t *testing.T, job *Job) (names []string, list []move) {
	t.Helper()
	var g Gather
	if err := g.Run(job, func(l *Launch) error {
		names = append(names, l.Kernel.String())
		list = append(list, moves(t, l)...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return names, list
}

// check compares what a job's launches move with what its plan says.
func check(t *testing.T, job *Job) (names []string) {
	t.Helper()
	names, got := launchesOf(t, job)
	got, want := canonical(got), canonical(wanted(job))
	if !slices.Equal(got, want) {
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("move %d: got %+v, want %+v", i, got[i], want[i])
			}
		}
		t.Fatalf("got %d moves, want %d", len(got), len(want))
	}
	return names
}

// place gives a job addresses: entries and outputs far apart, at the given alignment.
func place(job *Job, far uint64, align func() uint64) {
	next := uint64(0x7f00_0000_0000)
	take := func() uintptr {
		next += far
		return uintptr(next + align())
	}
	for range job.Plan.Layout.Batches {
		job.Dst = append(job.Dst, take())
	}
	for range job.Plan.Layout.Rows {
		job.Src = append(job.Src, take())
	}
}

// plain returns a job of contiguous float32 entries.
func plain(t *testing.T, batches int, rows []int64, rowShape ...int64) *Job {
	t.Helper()
	l := &flatten.Layout{
		NumKeys: len(rows) / max(batches, 1), Batches: batches, RowShape: rowShape, Rows: rows,
		DType: flatten.DType{Code: flatten.CodeFloat, Bits: 32, Lanes: 1},
	}
	p := new(flatten.Plan)
	if err := p.BuildPlain(l); err != nil {
		t.Fatal(err)
	}
	return &Job{Plan: p, Multiprocessors: 132}
}

// columns returns a job of one batch along dim 1, of entries of shape (outer, widths[k]) bytes.
func columns(t *testing.T, outer int64, widths ...int64) *Job {
	t.Helper()
	job := plain(t, 1, widths, outer)
	job.Plan.Layout.Dim, job.Plan.Layout.DType.Bits = 1, 8
	if err := job.Plan.BuildPlain(job.Plan.Layout); err != nil {
		t.Fatal(err)
	}
	return job
}

func repeat(n int, rows int64) []int64 { return slices.Repeat([]int64{rows}, n) }

func TestRoutes(t *testing.T) {
	tests := []struct {
		name  string
		job   *Job
		names []string
	}{
		{"nothing", plain(t, 2, repeat(8, 0), 4), nil},
		{"no batches", plain(t, 0, nil, 4), nil},
		{"seed job", plain(t, 4, repeat(16, 50), 256, 7, 7), []string{"gather_warp_4k"}},
		{"2048 segments of 512 bytes", plain(t, 32, repeat(64*32, 8), 16), []string{"gather_narrow_18k"}},
		{"8 x 8 tiny", plain(t, 8, repeat(64, 4), 64), []string{"gather_warp_4k"}},
		{"256 x 4 of 16 KB", plain(t, 4, repeat(256*4, 16), 256), []string{"gather_narrow_9k"}},
		{"2,700 segments", plain(t, 1, repeat(2700, 16), 4), []string{"gather_narrow_32k"}},
		{"64 x 32 of 20 KB", plain(t, 32, repeat(64*32, 20), 260), []string{"gather_narrow_18k"}},
		{"8 x 8 of 12 MB", plain(t, 8, repeat(64, 250), 256, 7, 7), []string{"gather_block_4k"}},
		{"a few short beside long ones", plain(t, 1, append(repeat(8, 100_000), repeat(8, 1)...), 256), []string{"gather_block_4k"}},
		{"one long and 1000 short", plain(t, 1, append(repeat(1000, 1), 1<<20), 16), []string{"gather_narrow_9k"}},
		{"one huge and 1000 short", plain(t, 1, append(repeat(1000, 1), 1<<24), 16), []string{"gather_block_4k", "gather_narrow_18k"}},
		{"long runs", columns(t, 4096, repeat(4, 9800)...), []string{"gather_pieces_4k"}},
		{"many long runs", columns(t, 16, repeat(100, 9800)...), []string{"gather_pieces_9k"}},
		{"more long runs", columns(t, 16, repeat(200, 9800)...), []string{"gather_pieces_32k"}},
		{"runs of words", columns(t, 8192, repeat(27, 196)...), []string{"gather_slots_4k"}},
		{"aligned runs", columns(t, 8192, repeat(27, 512)...), []string{"gather_vectors_4k"}},
		{"odd runs", columns(t, 65536, repeat(26, 33)...), []string{"gather_slots_4k"}},
		{"tiny runs", columns(t, 65536, repeat(26, 12)...), []string{"gather_units_4k"}},
		{"a few odd runs beside aligned ones", columns(t, 100, 512, 132, 124), []string{"gather_slots_4k"}},
		{"a few tiny runs, too", columns(t, 100, 512, 132, 24), []string{"gather_slots_4k"}},
		{"few runs of all kinds", columns(t, 100, 512, 33, 4000), []string{"gather_mixed_4k"}},
		{"many runs of all kinds", columns(t, 10_000, 512, 36, 4000), []string{"gather_pieces_4k", "gather_slots_4k", "gather_units_4k"}},
		{"odd lengths of many batches", plain(t, 1200, repeat(1200, 1), 2003), []string{"gather_warp_32k"}},
		{"beyond one launch", plain(t, 1, repeat(2, 3<<20), 256), []string{"gather_block_4k", "gather_block_4k", "gather_block_4k", "gather_block_4k"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			place(tt.job, 1<<33, func() uint64 { return 0 })
			if got := check(t, tt.job); !slices.Equal(got, tt.names) {
				t.Errorf("got %v, want %v", got, tt.names)
			}
		})
	}
}

// A grid dimension other than x ends at 65,535, and a table takes some 2,700 segments.
func TestMany(t *testing.T) {
	tests := []struct {
		name    string
		batches int
		segs    int
		most    int // launches
	}{
		{"70,000 batches of one row", 70_000, 70_000, 43},
		{"70,000 keys", 1, 70_000, 26},
		{"2^22+1 segments", 1, 1<<22 + 1, 1540},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job := plain(t, tt.batches, repeat(tt.segs, 1), 1)
			place(job, 64, func() uint64 { return 0 })
			names := check(t, job)
			if len(names) > tt.most {
				t.Errorf("got %d launches, want at most %d", len(names), tt.most)
			}
		})
	}
}

// Entries that lie one after the other in memory are one segment of the table.
func TestNeighboursJoin(t *testing.T) {
	job := plain(t, 1, repeat(1000, 10), 10)
	place(job, 400, func() uint64 { return 0 })
	_, list := launchesOf(t, job)
	if want := []move{{uint64(job.Dst[0]), uint64(job.Src[0]), 400_000}}; !slices.Equal(list, want) {
		t.Errorf("got %v, want %v", list, want)
	}
}

// Addresses whose upper 16 bits differ cannot share a table.
func TestHighAddresses(t *testing.T) {
	job := plain(t, 1, repeat(4, 10), 10)
	job.Dst = []uintptr{0xffff_8000_0000_1000}
	job.Src = []uintptr{0x1000, 1 << 48, 1<<48 + 4096, 0xffff_ffff_ffff_0000}
	if names := check(t, job); len(names) != 3 {
		t.Errorf("got %v, want three launches", names)
	}
}

func TestOtherDevicesStay(t *testing.T) {
	job := plain(t, 2, repeat(8, 10), 10)
	device := func(i int32) flatten.Device { return flatten.Device{Type: flatten.DeviceCUDA, Index: i} }
	job.Plan.Layout.Devices = []flatten.Device{device(0), device(1)}
	place(job, 1<<20, func() uint64 { return 0 })
	job.Device = device(1)
	if names := check(t, job); len(names) != 1 {
		t.Errorf("got %v, want one launch", names)
	}
	job.Device = device(2)
	if names := check(t, job); len(names) != 0 {
		t.Errorf("got %v, want no launch", names)
	}
}

func TestRunStopsAtAnError(t *testing.T) {
	job := plain(t, 70_000, repeat(70_000, 1), 1)
	place(job, 64, func() uint64 { return 0 })
	failed, calls := errors.New("failed"), 0
	var g Gather
	err := g.Run(job, func(*Launch) error {
		if calls++; calls == 3 {
			return failed
		}
		return nil
	})
	if !errors.Is(err, failed) || calls != 3 {
		t.Errorf("got %v after %d launches, want %v after 3", err, calls, failed)
	}
}

// Segments by hand, to reach sizes that no test can allocate.
func TestLargeStrides(t *testing.T) {
	axis := func(n, src, dst int64) flatten.Axis { return flatten.Axis{N: n, SrcStep: src, DstStep: dst} }
	tests := []struct {
		name string
		seg  flatten.Segment
	}{
		{"steps beyond 2^32", flatten.Segment{Bytes: 64, Axes: []flatten.Axis{axis(3, 5<<32, 3<<33), axis(2, -1<<34, 64)}}},
		{"offsets beyond 2^32", flatten.Segment{Src: 7 << 33, Dst: 5<<32 + 3, Bytes: 48, Axes: []flatten.Axis{axis(5, 48, 96)}}},
		{"one turn", flatten.Segment{Bytes: 100, Axes: []flatten.Axis{axis(1, 100, 200)}}},
		{"one turn of few", flatten.Segment{Bytes: 100, Axes: []flatten.Axis{axis(1, 100, 2000), axis(3, 100, 200)}}},
		{"expanded", flatten.Segment{Bytes: 4, Axes: []flatten.Axis{axis(1000, 0, 4)}}},
		{"four axes", flatten.Segment{Bytes: 2, Axes: []flatten.Axis{axis(2, 2, 1000), axis(3, 4, 300), axis(5, 12, 50), axis(7, -60, 2)}}},
		{"rows beyond 2^31 in all", flatten.Segment{Bytes: 1 << 28, Axes: []flatten.Axis{axis(20, 1<<28, 1<<29)}}},
		{"inner beyond 2^31", flatten.Segment{Bytes: 1 << 28, Axes: []flatten.Axis{axis(3, 1<<33, 1<<40), axis(20, 1<<28, 1<<29)}}},
		{"runs beyond 2^31", flatten.Segment{Bytes: 5<<30 + 7, Axes: []flatten.Axis{axis(3, 6<<30, 5<<30+7)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job := plain(t, 1, repeat(1, 1), 1)
			job.Plan.Segments = []flatten.Segment{tt.seg}
			job.Dst, job.Src = []uintptr{1 << 45}, []uintptr{1 << 46}
			check(t, job)
		})
	}
}

func TestRandomJobs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 500 {
		random, err := randjob.New(r)
		if err != nil {
			t.Fatal(err)
		}
		job := &Job{Plan: random.Plan, Multiprocessors: 1 + r.IntN(200)}
		place(job, 1<<30, func() uint64 { return uint64(r.IntN(16)) })
		if !t.Run(fmt.Sprintf("seed %d job %d", seed, i), func(t *testing.T) { check(t, job) }) {
			return
		}
	}
}

func TestDivisors(t *testing.T) {
	var tab table
	bounds := func(d uint32) []uint32 {
		top := uint32(1<<31 - 1)
		return []uint32{0, 1, d - 1, d, d + 1, top / d * d, top/d*d - 1, top - 1, top}
	}
	var divisors []uint32
	for shift := range 31 {
		power := uint32(1) << shift
		divisors = append(divisors, power, power+1, max(power-1, 1))
	}
	for range 10_000 {
		divisors = append(divisors, 1+rand.Uint32N(1<<31-1))
	}
	for _, d := range divisors {
		tab.putDivisor(0, d)
		for _, n := range bounds(d) {
			if n >= 1<<31 {
				continue
			}
			if got := divide(n, tab.words[:2]); got != n/d {
				t.Fatalf("%d / %d: got %d, want %d", n, d, got, n/d)
			}
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	jobs := map[string]*Job{"plain": plain(t, 32, repeat(64*32, 8), 16), "strided": plain(t, 32, repeat(64*32, 8), 16)}
	for i := range jobs["strided"].Plan.Segments {
		jobs["strided"].Plan.Segments[i].Axes = []flatten.Axis{{N: 2, SrcStep: 1 << 20, DstStep: 1 << 20}}
	}
	for name, job := range jobs {
		place(job, 1<<30, func() uint64 { return 0 })
		g := new(Gather)
		launch := func(*Launch) error { return nil }
		if n := testing.AllocsPerRun(10, func() {
			if err := g.Run(job, launch); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for _, bm := range []struct {
		name          string
		keys, batches int
	}{{"4x4", 4, 4}, {"64x32", 64, 32}} {
		b.Run(bm.name, func(b *testing.B) {
			l := &flatten.Layout{
				NumKeys: bm.keys, Batches: bm.batches, RowShape: []int64{16}, Rows: repeat(bm.keys*bm.batches, 8),
				DType: flatten.DType{Code: flatten.CodeFloat, Bits: 32, Lanes: 1},
			}
			job := &Job{Plan: new(flatten.Plan), Multiprocessors: 132}
			if err := job.Plan.BuildPlain(l); err != nil {
				b.Fatal(err)
			}
			place(job, 1<<30, func() uint64 { return 0 })
			g := new(Gather)
			launch := func(*Launch) error { return nil }
			for b.Loop() {
				if err := g.Run(job, launch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
