package launch

import "github.com/goflat/goflat/flatten"

// A castTable is the parameters of a launch while they are written: a table whose numbers are of
// elements, see gpu/kernels/cast.cuh.
type castTable struct {
	words    [LargeWords]uint32
	capacity int
	from, to int64 // bytes of an element
	records  int
	top      int // lowest word of the places
	elements uint32
	plain    int // the word of the lowest plain place, 0 if there is none
	base     uint64
	srcEnd   uint64 // where the source of the last record ends, if it is plain, else 0
}

// reset makes the table one for a kernel, empty.
func (t *castTable) reset(k CastKernel) {
	t.capacity, t.from, t.to = k.Words(), k.From.Bytes(), k.To.Bytes()
	t.empty()
}

func (t *castTable) empty() {
	t.records, t.top, t.elements = 0, t.capacity, 0
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
func (t *castTable) addPlain(dst, src uint64, n uint32) {
	base := dst - uint64(t.elements)*uint64(t.to)
	if t.plain == 0 || base != t.base {
		t.plain, t.base = t.newPlace(placeWords, base), base
		t.srcEnd = 0
	}
	if t.srcEnd == 0 || t.srcEnd != src {
		t.record(src, uint32(t.plain))
	}
	t.elements += n
	t.srcEnd = src + uint64(n)*uint64(t.from)
}

// newPlace takes words off the end, writes what every place begins with, and returns the first.
func (t *castTable) newPlace(words int, base uint64) int {
	t.top -= words
	t.put64(t.top, base)
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
	place := t.newPlace(axesWord+axisWords*len(r.axes), r.dst-uint64(t.elements)*uint64(t.to))
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
		t.put64(at+3, uint64(axis.SrcStep*t.from))
		t.put64(at+5, uint64(axis.DstStep*t.to))
	}
	t.record(r.src, uint32(place)|stridedBit)
	t.elements += payload
	t.plain, t.srcEnd = 0, 0
}

// tile returns how many elements a warp takes, on a device of so many multiprocessors: 2 KiB of the
// wider type where there are enough for 8 warps a multiprocessor, else less. Conversions of 8 bits
// take more instructions an element, and so twice as many elements: 240 MB from float16 to
// float8_e4m3fn took 1.18 times as long as memcpy instead of 1.35, from float32 to bfloat16 0.99
// instead of 0.98 (H200, docs/adr/0016-casts-while-copying.md).
func (t *castTable) tile(multiprocessors int) uint32 {
	const least, perMultiprocessor = 32, 8
	most, share := uint32(2048/max(t.from, t.to)), t.elements/(perMultiprocessor*uint32(multiprocessors))
	if min(t.from, t.to) == 1 {
		most *= 2
	}
	tile := uint32(least)
	for tile < most && tile*2 <= share {
		tile *= 2
	}
	return tile
}

// close writes the header.
func (t *castTable) close(tile uint32, rules flatten.Rules) {
	t.words[segmentsWord], t.words[bytesWord], t.words[tileWord] = uint32(t.records), t.elements, tile
	t.words[highWord] = t.words[highWord]&0xffff | uint32(rules)<<16
}
