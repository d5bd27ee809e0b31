package flatten

// A band is some strips of the two innermost axes, moved tile by tile, or across
// where the strips are short. There are bands for two reasons.
//
// A strip takes longer to start than a few runs take to move, and of a table with
// three strided columns each row is a strip. Across, 64 rows are three strips:
// 9.2 ns an element of 4 bytes became 1.7.
//
// Where the source lies transposed, a strip jumps through it and touches a new
// cache line with every run, which a later strip needs again. A tile is small
// enough for these lines to stay in the second-level cache until then, and long
// enough in the output for whole lines to be written. A 2048x2048 transpose of
// 4 bytes, ns per element by bandStrips x tileRuns: none 7.1, 64x128 2.0,
// 128x128 1.5, 64x256 1.5, 256x256 1.3, 64x512 3.0 (Xeon with 2 MiB of L2). 64x256 is
// the smallest of the good ones, for smaller caches.
//
// BenchmarkExecuteStrided has both cases: fewcolumns and transposed4k.
const (
	bandStrips = 64  // strips of a band
	tileRuns   = 256 // runs of a strip in one tile
	shortRuns  = 16  // strips of fewer runs cost more to start than to move
)

// bandHeight is how many strips to move together, 1 where one by one is as good.
func (s *Segment) bandHeight() int64 {
	last := len(s.Axes) - 1
	if last < 1 {
		return 1
	}
	inner, outer := s.Axes[last], s.Axes[last-1]
	if inner.N < shortRuns || magnitude(inner.SrcStep) > magnitude(outer.SrcStep) {
		return bandStrips
	}
	return 1
}

// moveBand moves whole strips, rows of them from o on.
func (s *Segment) moveBand(dst, src []byte, o odometer, rows int64, move func(dst, src []byte, s strip)) {
	inner, outer := s.Axes[len(s.Axes)-1], s.Axes[len(s.Axes)-2]
	if inner.N < rows {
		inner, outer, rows = Axis{rows, outer.SrcStep, outer.DstStep}, inner, inner.N
	}
	for at := int64(0); at < inner.N; at += tileRuns {
		tile := strip{
			dst: o.dst + at*inner.DstStep, src: o.src + at*inner.SrcStep,
			dstStep: inner.DstStep, srcStep: inner.SrcStep, n: min(tileRuns, inner.N-at), bytes: s.Bytes,
		}
		for range rows {
			move(dst, src, tile)
			tile.dst += outer.DstStep
			tile.src += outer.SrcStep
		}
	}
}
