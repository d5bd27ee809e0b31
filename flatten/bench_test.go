package flatten

import (
	"fmt"
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
						p.runShares(dst, src, workers, p.cuts(l.Bytes(), workers*sharesPerWorker))
					}
				}
			})
		}
	}
}
