package launch

import "github.com/goflat/goflat/flatten"

// The classes that segments are sorted into.
const (
	long = iota
	short
	strided
	numClasses
)

const (
	// shortBytes: a warp moves so much with one round of loads. A block of 512 threads
	// would leave most of them idle on a shorter segment.
	shortBytes = 2 << 10
	// blockBytes: mean length from which a block a tile may be used. Half a tile.
	blockBytes = 16 << 10
	// bulkBytes: from so much a multiprocessor on it is. A warp has smaller tiles, so that
	// the last ones are done sooner: 44 MB of 21 KB segments take 1.11 times as long as
	// memcpy by warps and 1.19 by blocks; 40 MB of 2.5 MB ones 1.08 and 1.07, and 3.2 GB
	// 1.018 and 1.016 (H200, docs/adr/0014-gather-kernels-by-size.md).
	bulkBytes = 1 << 20
	// launchBytes: what a device moves in the time that one more launch costs, about 2
	// µs. Less is not worth it.
	launchBytes = 4 << 20
	// fewShort: so many short segments, or an eighth of all, may go with the long ones.
	fewShort = 16
)

// tally is what is in a class.
type tally struct {
	segments int
	bytes    int64
	words    int // of the records and strided places
}

func (t *tally) add(o tally) {
	t.segments += o.segments
	t.bytes += o.bytes
	t.words += o.words
}

// count adds a segment.
func (t *tally) count(bytes int64, axes []flatten.Axis) {
	t.segments++
	t.words += recordWords
	if len(axes) == 0 {
		t.bytes += bytes
		return
	}
	for i := range axes {
		bytes *= axes[i].N
	}
	t.bytes += bytes
	t.words += axesWord + axisWords*len(axes)
}

// classOf returns a segment's class.
func classOf(s *flatten.Segment) int { return class(s.Bytes, len(s.Axes)) }

func classOfMove(m *flatten.Move) int { return class(m.Bytes, len(m.Axes)) }

func class(bytes int64, axes int) int {
	switch {
	case axes > 0:
		return strided
	case bytes < shortBytes:
		return short
	default:
		return long
	}
}

// A route says for each class in which table it goes, and for each table by which
// kernel: the one with the smallest parameters that the table may need.
type route struct {
	table  [numClasses]int
	kernel [numClasses]Kernel
}

// choose decides the route of a job from its tallies and the number of batches that
// they come from, on a device of so many multiprocessors. Each class has its own table until merged into another's.
func choose(t [numClasses]tally, batches, multiprocessors int) route {
	r := route{
		table:  [numClasses]int{long: long, short: short, strided: strided},
		kernel: [numClasses]Kernel{long: Warp4K, short: Warp4K, strided: Strided4K},
	}
	merge := func(from, into int) {
		t[into].add(t[from])
		t[from] = tally{}
		for class := range r.table {
			if r.table[class] == from {
				r.table[class] = into
			}
		}
	}
	all := t[long].segments + t[short].segments + t[strided].segments
	if t[strided].segments > 0 && t[long].bytes+t[short].bytes < launchBytes {
		merge(long, strided)
		merge(short, strided)
	}
	blocks := t[long].bytes >= max(bulkBytes*int64(multiprocessors), blockBytes*int64(t[long].segments))
	if !blocks || t[short].segments <= max(fewShort, t[long].segments/8) {
		merge(short, long)
	}
	if blocks {
		r.kernel[long] = Block4K
	}
	for class := range t {
		places := t[class].segments
		if class == long && places == all { // of a batch, all in one table and side by side
			places = batches
		}
		r.kernel[class] = r.kernel[class].fitting(recordsWord + t[class].words + placeWords*places)
	}
	return r
}
