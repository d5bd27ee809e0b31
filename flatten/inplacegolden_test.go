package flatten

import (
	"path/filepath"
	"testing"
)

// goldenInPlace are plans in place kept as text in testdata/inplace, one file per
// name, reviewed like code.
var goldenInPlace = []struct {
	name string
	memoryJob
}{
	{"already_in_place", job2x2(batchMajor, Block{Lo: 0x1000, Hi: 0x1020, Bytes: 32})},
	{"two_keys_two_batches_in_one_block", job2x2(keyMajor, Block{Lo: 0x1000, Hi: 0x1020, Bytes: 32})},
	{"one_run_of_four_blocks", job2x2(keyMajor, block(0x1000, 8), block(0x1008, 8), block(0x1010, 8), block(0x1018, 8))},
	{"two_runs_that_hold_one_output_each", memoryJob{
		layout: uniform(2, 2, 2, 4), o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1020, 1}, {0x2000, 2}, {0x2020, 3}},
		blocks: []Block{block(0x1000, 32), block(0x1020, 32), {Lo: 0x2000, Hi: 0x2020, Bytes: 32, Range: 1}, {Lo: 0x2020, Hi: 0x2040, Bytes: 32, Range: 1}},
	}},
	{"four_runs_hold_nothing", memoryJob{
		layout: uniform(2, 2, 2, 4), o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1020, 1}, {0x2000, 2}, {0x2020, 3}},
		blocks: []Block{block(0x1000, 32), {Lo: 0x1020, Hi: 0x1040, Bytes: 32, Range: 1}, {Lo: 0x2000, Hi: 0x2020, Bytes: 32, Range: 2}, {Lo: 0x2020, Hi: 0x2040, Bytes: 32, Range: 3}},
	}},
	{"one_entry_is_held", memoryJob{
		layout: uniform(2, 2, 2, 4), o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1020, 1}, {0x9000, -1}, {0x1040, 2}},
		blocks: []Block{block(0x1000, 32), block(0x1020, 32), block(0x1040, 32)},
	}},
	{"room_for_all", memoryJob{
		layout: uniform(2, 2, 2, 4), o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1020, 1}, {0x1040, 2}, {0x1060, 3}},
		blocks: []Block{block(0x1000, 32), block(0x1020, 32), block(0x1040, 32), block(0x1060, 32), {Lo: 0x1080, Hi: 0x2000}},
	}},
	{"slide_over_a_gap", memoryJob{
		layout: uniform(3, 1, 2, 4), o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1040, 2}, {0x1060, 3}},
		blocks: []Block{block(0x1000, 32), {Lo: 0x1020, Hi: 0x1040}, block(0x1040, 32), block(0x1060, 32)},
	}},
	{"pages_over_gaps_off_the_grid", offGrid(Options{Cooperative: true})},
	{"pages_without_cooperative_launches", offGrid(Options{})},
	{"too_little_scratch_for_pages", withoutRoom(offGrid(Options{Cooperative: true, ScratchBytes: 256}))},
	{"nothing_may_be_adopted", offGrid(Options{Cooperative: true, NoAdopt: true})},
	{"last_dim", memoryJob{
		layout: &Layout{NumKeys: 2, Batches: 2, Dim: 1, RowShape: []int64{2}, Rows: []int64{2, 4, 2, 2}, DType: float32s}, o: Options{Cooperative: true},
		places: []Place{{0x1000, 0}, {0x1010, 0}, {0x1030, 0}, {0x1040, 0}},
		blocks: []Block{{Lo: 0x1000, Hi: 0x1050, Bytes: 0x50}},
	}},
}

// block is a block of n bytes in range 0.
func block(at uint64, n int64) Block { return Block{Lo: at, Hi: at + uint64(n), Bytes: n} }

var (
	keyMajor   = []uint64{0x1000, 0x1008, 0x1010, 0x1018}
	batchMajor = []uint64{0x1000, 0x1010, 0x1008, 0x1018}
)

// job2x2 is two keys of two batches of 8 bytes each, at the given addresses.
func job2x2(at []uint64, blocks ...Block) memoryJob {
	m := memoryJob{layout: uniform(2, 2, 2), blocks: blocks, o: Options{Cooperative: true}}
	for _, addr := range at {
		i := 0
		for addr >= blocks[i].Hi {
			i++
		}
		m.places = append(m.places, Place{addr, i})
	}
	return m
}

// offGrid is a job whose rows have 12 bytes and whose blocks begin at multiples of 16.
func offGrid(o Options) memoryJob {
	m := memoryJob{layout: uniform(2, 3, 0, 3), o: o}
	m.o.TableLimit = 32
	at := uint64(0x1000)
	for e := range m.layout.Rows {
		m.layout.Rows[e] = int64(3 + e%2)
		n := m.layout.Rows[e] * 12
		m.places = append(m.places, Place{at, e})
		m.blocks = append(m.blocks, Block{Lo: at, Hi: at + uint64(roundUp(n, 16)), Bytes: n})
		at += uint64(roundUp(n, 16))
	}
	m.blocks = append(m.blocks, Block{Lo: at, Hi: at + 70})
	return m
}

// withoutRoom takes the free room behind the entries away.
func withoutRoom(m memoryJob) memoryJob {
	m.blocks = m.blocks[:len(m.blocks)-1]
	return m
}

func TestGoldenPlansInPlace(t *testing.T) {
	for i := range goldenInPlace {
		tt := &goldenInPlace[i]
		t.Run(tt.name, func(t *testing.T) {
			p := tt.check(t, newRand(1))
			compareFile(t, filepath.Join("testdata", "inplace", tt.name+".txt"), p.String())
		})
	}
}

func TestEveryGoldenFileHasAPlanInPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/inplace/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(files), len(goldenInPlace); got != want {
		t.Errorf("got %d files, want %d", got, want)
	}
}
