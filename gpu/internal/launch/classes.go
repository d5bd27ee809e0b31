package launch

import "github.com/goflat/goflat/flatten"

// The classes that segments are sorted into.
const (
	long = iota
	short
	whole   // of runs that are long
	vectors // of short runs of aligned units of 16 bytes
	slotted // of other short runs
	tiny    // of shorter ones
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
	// mixBytes: segments that are better off with a kernel of their own go with others in jobs of
	// less, where what they gain is less than the 2 to 3 µs of one more launch.
	mixBytes = 16 << 20
	// fewShort: so many short segments, or an eighth of all, may go with the long ones.
	fewShort = 16
)

// tally is what is in a class.
type tally struct {
	segments int
	bytes    int64
	words    int // of strided places
}

func (t *tally) add(o tally) {
	t.segments += o.segments
	t.bytes += o.bytes
	t.words += o.words
}

// count adds a segment.
func (t *tally) count(bytes int64, axes []flatten.Axis) {
	t.segments++
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

// A census is what choose decides by.
type census struct {
	classes [numClasses]tally
	// batches that the segments come from: places of plain segments that all are in one table.
	batches int
	plain   spread
}

// plainClass returns the class of a segment without axes.
func plainClass(bytes int64) int {
	if bytes < shortBytes {
		return short
	}
	return long
}

// classOf returns the class of a segment.
func classOf(dst, src uint64, bytes int64, axes []flatten.Axis) int {
	switch {
	case len(axes) == 0:
		return plainClass(bytes)
	case bytes >= wholeRunBytes:
		return whole
	case unitOf(dst, src, bytes, axes) == 4:
		return vectors
	case tinyRuns(bytes, unitOf(dst, src, bytes, axes)):
		return tiny
	default:
		return slotted
	}
}

// A route says for each class in which table it goes, and for each table by which
// kernel: the one with the smallest parameters that the table may need.
type route struct {
	table  [numClasses]int
	kernel [numClasses]Kernel
	narrow [numClasses]narrow // for tables of narrow records
}

// lengths returns of how many lengths plain segments in a table are, from which on.
func (r *route) lengths(table int) (least int64, lengths uint64) {
	switch {
	case r.table[short] != table:
		return shortBytes, 1 << 63
	case r.table[long] != table:
		return 0, shortBytes
	}
	return 0, 1 << 63
}

// merge sends a class and what goes with it into another's table.
func (r *route) merge(t *[numClasses]tally, from, into int) {
	if from == into {
		return
	}
	t[into].add(t[from])
	t[from] = tally{}
	for class := range r.table {
		if r.table[class] == from {
			r.table[class] = into
		}
	}
}

// choose decides the route of a job on a device of so many multiprocessors. Each class has
// its own table until merged into another's.
func choose(c *census, multiprocessors int) route {
	r := route{
		table:  [numClasses]int{long, short, whole, vectors, slotted, tiny},
		kernel: [numClasses]Kernel{Warp4K, Warp4K, Pieces4K, Vectors4K, Slots4K, Units4K},
	}
	t := c.classes
	r.mix(&t)
	blocks := t[long].bytes >= max(bulkBytes*int64(multiprocessors), blockBytes*int64(t[long].segments))
	if !blocks || t[short].segments <= max(fewShort, t[long].segments/8) {
		r.merge(&t, short, long)
	}
	if blocks {
		r.kernel[long] = Block4K
	}
	for class := range t {
		if t[class].segments > 0 {
			r.fit(class, t[class], c)
		}
	}
	return r
}

// mix puts segments of several kinds into one table where few bytes are moved.
func (r *route) mix(t *[numClasses]tally) {
	all, kinds := t[long], 0
	all.add(t[short])
	if all.segments > 0 {
		kinds++
	}
	others := all.segments + t[whole].segments // that slots cannot do
	for _, some := range t[whole:] {
		all.add(some)
		if some.segments > 0 {
			kinds++
		}
	}
	if all.bytes >= mixBytes || kinds < 2 {
		return
	}
	if others > 0 {
		r.kernel[slotted] = Mixed4K
	}
	for class := range t {
		if t[class].segments > 0 { // where there are none, plain segments that strided ones leave stay apart
			r.merge(t, class, slotted)
		}
	}
}

// fit chooses the size of a table's parameters.
func (r *route) fit(table int, t tally, c *census) {
	places := t.segments // at most; those of strided segments are counted already
	switch {
	case table == long && places == c.segments(): // of a batch, all in one table and side by side
		places = c.batches
	case table >= whole && r.kernel[table] != Mixed4K:
		places = 0
	}
	words := recordsWord + recordWords*t.segments + t.words + placeWords*places
	if r.kernel[table] == Warp4K && words > SmallWords {
		if n, ok := c.plain.narrow(t.segments, places, t.bytes); ok {
			r.kernel[table], r.narrow[table] = Narrow9K, n
			words = narrowRecordsWord + narrowRecordWords*t.segments + placeWords*places
		}
	}
	r.kernel[table] = r.kernel[table].fitting(words)
}

func (c *census) segments() int {
	n := 0
	for i := range c.classes {
		n += c.classes[i].segments
	}
	return n
}
