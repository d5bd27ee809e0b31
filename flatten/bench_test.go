package flatten

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

var float32s = DType{CodeFloat, 32, 1}

// uniform is the layout of keys x batches entries of rows rows.
func uniform(keys, batches int, rows int64, rowShape ...int64) *Layout {
	l := &Layout{NumKeys: keys, Batches: batches, RowShape: rowShape, Rows: make([]int64, keys*batches), DType: float32s}
	for e := range l.Rows {
		l.Rows[e] = rows
	}
	return l
}

// memory makes contiguous memory for a layout's entries and outputs.
func memory(l *Layout) (dst, src [][]byte) {
	dst, src = make([][]byte, l.Batches), make([][]byte, len(l.Rows))
	for b := range dst {
		dst[b] = make([]byte, l.BatchBytes(b))
	}
	for e := range src {
		src[e] = make([]byte, l.Rows[e]*l.RowBytes())
		for i := range src[e] {
			src[e][i] = byte(i ^ e)
		}
	}
	return dst, src
}

func BenchmarkBuildPlain(b *testing.B) {
	for _, l := range []*Layout{uniform(4, 4, 50, 256, 7, 7), uniform(64, 32, 8, 16), uniform(70000, 1, 1, 4)} {
		b.Run(fmt.Sprintf("%dx%d", l.NumKeys, l.Batches), func(b *testing.B) {
			p := new(Plan)
			b.ReportAllocs()
			for b.Loop() {
				if err := p.BuildPlain(l); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(l.Rows)), "ns/entry")
		})
	}
}

func BenchmarkExecuteWorkers(b *testing.B) {
	for _, rows := range []int64{16, 64, 128, 256, 512, 1024, 4096} { // x 1 KiB x 16 entries
		l := uniform(4, 4, rows, 256)
		p := new(Plan)
		if err := p.BuildPlain(l); err != nil {
			b.Fatal(err)
		}
		dst, src := memory(l)
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%dKiB/workers=%d", l.Bytes()>>10, workers), func(b *testing.B) {
				b.SetBytes(l.Bytes())
				b.ReportAllocs()
				for b.Loop() {
					if workers == 1 {
						p.Execute(dst, src, 1)
					} else {
						p.share(l.Bytes(), workers, func(s *Segment, first, end int64) {
							s.move(dst[s.Batch], src[s.Entry], first, end)
						})
					}
				}
			})
		}
	}
}

func BenchmarkExecuteSmall(b *testing.B) {
	l := uniform(64, 32, 8, 16)
	dst, src := memory(l)
	p := new(Plan)
	b.SetBytes(l.Bytes())
	b.ReportAllocs()
	for b.Loop() {
		if err := p.BuildPlain(l); err != nil {
			b.Fatal(err)
		}
		p.Execute(dst, src, 0)
	}
}

func BenchmarkExecuteStrided(b *testing.B) {
	const n = 1 << 18 // elements: 256 KiB to 4 MiB
	for _, dtype := range []DType{{CodeUint, 8, 1}, {CodeFloat, 16, 1}, {CodeFloat, 32, 1}, {CodeFloat, 64, 1}, {CodeComplex, 128, 1}, {CodeUint, 8, 12}} {
		elem := dtype.ElemBytes()
		for _, way := range []struct {
			name string
			View
		}{
			{"step2", View{[]int64{n}, []int64{2 * elem}}},
			{"reversed", View{[]int64{n}, []int64{-elem}}},
			{"expanded", View{[]int64{n / 64, 64}, []int64{elem, 0}}},
			{"transposed", View{[]int64{512, 512}, []int64{elem, 512 * elem}}},
			{"transposed4k", View{[]int64{4096, 4096}, []int64{elem, 4096 * elem}}},
			{"fewcolumns", View{[]int64{n / 4, 3}, []int64{5 * elem, 2 * elem}}},
			{"fewcolumnstransposed", View{[]int64{n / 4, 4}, []int64{elem, n / 4 * elem}}},
			{"channelslast", View{[]int64{n / 64 / 64, 64, 8, 8}, []int64{64 * 64 * elem, elem, 8 * 64 * elem, 64 * elem}}},
		} {
			b.Run(fmt.Sprintf("%d/%s", elem, way.name), func(b *testing.B) {
				entries := []Entry{{View: way.View, DType: dtype}}
				l, err := NewLayout(nil, 1, entries, 0)
				if err != nil {
					b.Fatal(err)
				}
				p, err := NewPlan(l, entries, nil)
				if err != nil {
					b.Fatal(err)
				}
				lo, hi := way.Span(elem)
				dst, src := [][]byte{make([]byte, l.Bytes())}, [][]byte{make([]byte, hi-lo)}
				b.SetBytes(l.Bytes())
				for b.Loop() {
					p.Execute(dst, src, 1)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(l.Bytes()/elem), "ns/elem")
			})
		}
	}
}

func BenchmarkBuildStrided(b *testing.B) {
	l := uniform(64, 32, 8, 4, 4)
	entries := make([]Entry, len(l.Rows))
	for e := range entries {
		entries[e] = Entry{View: View{Shape: []int64{8, 4, 4}, Strides: []int64{64, 4, 16}}, DType: l.DType}
	}
	p := new(Plan)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Build(l, entries, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(entries)), "ns/entry")
}

// collected lays out contiguous entries key by key in one range, as an allocator
// that rounds sizes up to round bytes does, with room behind them.
func collected(l *Layout, round, room uint64) (places []Place, blocks []Block) {
	at := uint64(1 << 40)
	for e, rows := range l.Rows {
		n := rows * l.RowBytes()
		end := at + (uint64(n)+round-1)/round*round
		places = append(places, Place{at, e})
		blocks = append(blocks, Block{Lo: at, Hi: end, Bytes: n})
		at = end
	}
	return places, append(blocks, Block{Lo: at, Hi: at + room})
}

// ragged is the layout of entries of 1 to 2*rows rows.
func ragged(keys, batches int, rows int64, rowShape ...int64) *Layout {
	l := uniform(keys, batches, rows, rowShape...)
	rng := rand.New(rand.NewPCG(1, 2))
	for e := range l.Rows {
		l.Rows[e] = 1 + rng.Int64N(2*rows)
	}
	return l
}

func BenchmarkPlanInPlace(b *testing.B) {
	for _, bb := range []struct {
		name  string
		l     *Layout
		round uint64
		room  uint64
	}{
		{"seed", uniform(4, 4, 50, 256, 7, 7), 512, 0},
		{"64x32rows", uniform(64, 32, 8, 16), 512, 0},
		{"64x32ragged", ragged(64, 32, 8, 512), 1, 0},
		{"64x32collected", ragged(64, 32, 8, 260), 512, 0},
		{"64x32room", ragged(64, 32, 8, 260), 512, 1 << 30},
		{"64x32spilled", ragged(64, 32, 8, 260), 1 << 20, 0},
		{"101krows", ragged(64, 32, 49, 512), 1, 0},
		{"collected", ragged(4, 8, 100, 256, 7, 7), 512, 0},
	} {
		b.Run(bb.name, func(b *testing.B) {
			places, blocks := collected(bb.l, bb.round, bb.room)
			if bb.name == "64x32spilled" {
				for i := range blocks {
					blocks[i].Range = i
				}
			}
			b.ReportAllocs()
			var p *InPlace
			var err error
			for b.Loop() {
				if p, err = PlanInPlace(bb.l, nil, places, blocks, Options{Cooperative: true, ScratchBytes: DefaultScratchBytes}); err != nil {
					b.Fatal(err)
				}
			}
			var rows int64
			for _, n := range bb.l.Rows {
				rows += n
			}
			b.ReportMetric(float64(rows), "rows")
			b.ReportMetric(float64(len(p.Steps)), "steps")
			b.ReportMetric(float64(p.Growth), "growth")
		})
	}
}
