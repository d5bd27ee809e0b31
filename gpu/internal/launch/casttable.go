package launch

import "github.com/goflat/goflat/flatten"

// The layout of a table of casts, as in gpu/kernels/cast.cuh: that of a table whose numbers are of
// elements, and whose places have a word more.
const (
	sourceWord     = 2 // of a place: the type of its sources
	castShiftWords = 1 // so much further back lies what a strided place has
	castPlaceWords = 3
)

// castStridedWords is the length of the place of a strided segment.
func castStridedWords(axes int) int { return castShiftWords + axesWord + axisWords*axes }

// A castTable is the parameters of a launch while they are written, see table.
type castTable struct {
	words    [LargeWords]uint32
	capacity int
	to       flatten.Float
	rules    flatten.Rules
	records  int
	top      int // lowest word of the places
	elements uint32
	widest   int64 // bytes of the widest element so far
	plain    int   // the word of the lowest plain place, 0 if there is none
	base     uint64
	from     flatten.Float // of that place
	srcEnd   uint64        // where the source of the last record ends, if it is plain, else 0
}

// reset makes the table one of a job, empty.
func (t *castTable) reset(job *CastJob, capacity int) {
	t.capacity, t.to, t.rules = capacity, job.To, job.Rules
	t.empty()
}

func (t *castTable) empty() {
	t.records, t.top, t.elements = 0, t.capacity, 0
	t.widest = t.to.Bytes()
	t.plain, t.srcEnd = 0, 0
}

// fits reports whether another segment of so many elements has room for itself and a place, in a
// table whose sources share the upper 16 bits of their addresses.
func (t *castTable) fits(src uint64, elements int64, place int) bool {
	room := t.top - recordsWord - t.records*recordWords
	return room >= recordWords+place && int64(t.elements)+elements <= maxCastElements &&
		(t.records == 0 || uint32(src>>48) == t.words[highWord])
}

// addPlain appends a segment of elements side by side; it must fit.
func (t *castTable) addPlain(dst, src uint64, from flatten.Float, n uint32) {
	base := dst - uint64(t.elements)*uint64(t.to.Bytes())
	if t.plain == 0 || base != t.base || from != t.from {
		t.plain, t.base, t.from = t.newPlace(castPlaceWords, base, from), base, from
		t.srcEnd = 0
	}
	if t.srcEnd == 0 || t.srcEnd != src {
		t.record(src, uint32(t.plain))
	}
	t.elements += n
	t.srcEnd = src + uint64(n)*uint64(from.Bytes())
}

// newPlace takes words off the end, writes what every place begins with, and returns the first.
func (t *castTable) newPlace(words int, base uint64, from flatten.Float) int {
	t.top -= words
	t.put64(t.top, base)
	t.words[t.top+sourceWord] = uint32(from)
	t.widest = max(t.widest, from.Bytes())
	return t.top
}

func (t *castTable) put64(at int, v uint64) {
	t.words[at], t.words[at+1] = uint32(v), uint32(v>>32)
}

// record appends a record for the elements from t.elements on.
func (t *castTable) record(src uint64, place uint32) {
	r := t.words[recordsWord+t.records*recordWords:][:recordWords]
	r[0], r[1], r[2] = t.elements, uint32(src), uint32(src>>32)&0xffff|place<<16
	t.words[highWord] = uint32(src >> 48)
	t.records++
}

// wholeCastElements is the length from which a warp converts a run at a time: four for each of its
// threads. Shorter ones are converted an element a thread.
const wholeCastElements = 128

// addStrided appends the first turns of a strided segment; it must fit.
func (t *castTable) addStrided(r castRuns, turns int64, payload uint32) {
	base := r.dst - uint64(t.elements)*uint64(t.to.Bytes())
	start := t.newPlace(castStridedWords(len(r.axes)), base, r.from)
	place := start + castShiftWords
	t.words[place+runWord] = uint32(r.elements)
	putDivisor(t.words[place+runDivisorWord:][:2], uint32(r.elements))
	t.words[place+shapeWord] = uint32(len(r.axes))
	if r.elements >= wholeCastElements {
		t.words[place+shapeWord] |= 1 << 16
	}
	for i := range r.axes {
		axis := r.axes[len(r.axes)-1-i] // innermost first
		if i == len(r.axes)-1 {
			axis.N = turns
		}
		at := place + axesWord + i*axisWords
		t.words[at] = uint32(axis.N)
		putDivisor(t.words[at+1:][:2], uint32(axis.N))
		t.put64(at+3, uint64(axis.SrcStep*r.from.Bytes()))
		t.put64(at+5, uint64(axis.DstStep*t.to.Bytes()))
	}
	t.record(r.src, uint32(start)|stridedBit)
	t.elements += payload
	t.plain, t.srcEnd = 0, 0
}

// tile returns how many elements a warp takes, on a device of so many multiprocessors: 2 KiB of the
// widest type where there are enough for 8 warps a multiprocessor, else less.
func (t *castTable) tile(multiprocessors int) uint32 {
	const least, perMultiprocessor = 32, 8
	most, share := uint32(2048/t.widest), t.elements/(perMultiprocessor*uint32(multiprocessors))
	tile := uint32(least)
	for tile < most && tile*2 <= share {
		tile *= 2
	}
	return tile
}

// close writes the header.
func (t *castTable) close(tile uint32) {
	t.words[segmentsWord], t.words[bytesWord], t.words[tileWord] = uint32(t.records), t.elements, tile
	t.words[highWord] = t.words[highWord]&0xffff | uint32(t.rules)<<16
}
