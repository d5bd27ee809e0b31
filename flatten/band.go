package flatten

// A band is some strips of the two innermost axes, moved tile by tile.
//
// Where the source lies transposed, a strip jumps through it and touches a new
// cache line with every run, which a later strip needs again. A tile is small
// enough for these lines to stay in the second-level cache until then, and long
// enough in the output for whole lines to be written. A 2048x2048 transpose of
// 4 bytes, ns per element by bandStrips x tileRuns: none 7.1, 32x32 4, 128x128 1.5,
// 64x256 1.5, 256x256 1.3, 64x512 3.0 (Xeon with 2 MiB of L2); 64x256 is the
// smallest of the good ones, for smaller caches. BenchmarkExecuteStrided repeats it.
const (
	bandStrips = 64  // strips of a band
	tileRuns   = 256 // runs of a strip in one tile
)

// bandHeight is how many strips to move together: 1 unless the source has the
// two innermost axes the other way around.
func (s *Segment) bandHeight() int64 {
	last := len(s.Axes) - 1
	if last < 1 || magnitude(s.Axes[last].SrcStep) <= magnitude(s.Axes[last-1].SrcStep) {
		return 1
	}
	return bandStrips
}

// moveBand moves whole strips, rows of them from o on.
func (s *Segment) moveBand(dst, src []byte, o odometer, rows int64, move func(dst, src []byte, s strip)) {
	inner, outer := s.Axes[len(s.Axes)-1], s.Axes[len(s.Axes)-2]
	for at := int64(0); at < inner.N; at += tileRuns {
		tile := s.strip(o, min(tileRuns, inner.N-at))
		tile.dst += at * inner.DstStep
		tile.src += at * inner.SrcStep
		for range rows {
			move(dst, src, tile)
			tile.dst += outer.DstStep
			tile.src += outer.SrcStep
		}
	}
}
