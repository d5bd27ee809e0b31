package launch

import "math/bits"

// The layout of a table, as in gpu/kernels/table.cuh.
const (
	SmallWords  = 4096 / 4  // what every launch may have
	MiddleWords = 16384 / 4 // 1,300 segments
	WideWords   = 25600 / 4 // 2,048 segments of up to 126 batches
	LargeWords  = 32764 / 4 // what drivers from CUDA 12.1 on take

	segmentsWord = 0
	bytesWord    = 1
	tileWord     = 2
	highWord     = 3
	recordsWord  = 4
	recordWords  = 3

	stridedBit     = 0x8000
	placeWords     = 2 // of a plain place
	runWord        = 2
	runDivisorWord = 3
	shapeWord      = 5
	axesWord       = 6
	axisWords      = 7
)

// maxBytes is how many bytes one launch moves at most: below 2^31, which the kernels'
// division by multiplication needs, and a multiple of 16, so that cutting a segment
// there leaves its alignment alone.
const maxBytes = 1<<31 - 1<<16

// A table is the parameters of a launch while they are written: records grow from
// the front, places from the end.
type table struct {
	words    [LargeWords]uint32
	capacity int    // words in use, those of the kernel
	records  int    // written
	top      int    // lowest word of the places
	bytes    uint32 // that the records move
	base     uint64 // destination minus first number, of the lowest plain place
	plain    int    // that place's word, 0 if there is none
	srcEnd   uint64 // where the source of the last record ends, if it is plain, else 0
}

// reset empties the table.
func (t *table) reset(capacity int) {
	t.capacity, t.records, t.top, t.bytes = capacity, 0, capacity, 0
	t.plain, t.srcEnd = 0, 0
}

// room returns the words that are neither record nor place.
func (t *table) room() int { return t.top - recordsWord - t.records*recordWords }

// fits reports whether another segment of so many bytes has room for itself and a
// place, in a table whose sources share the upper 16 bits of their addresses.
func (t *table) fits(src, bytes uint64, place int) bool {
	return t.room() >= recordWords+place && uint64(t.bytes)+bytes <= maxBytes &&
		(t.records == 0 || uint32(src>>48) == t.words[highWord])
}

// addPlain appends a segment of contiguous bytes; it must fit.
func (t *table) addPlain(dst, src uint64, n uint32) {
	base := dst - uint64(t.bytes)
	if t.plain == 0 || base != t.base {
		t.plain, t.base = t.newPlace(placeWords), base
		t.put64(t.plain, base)
		t.srcEnd = 0
	}
	if t.srcEnd == 0 || t.srcEnd != src {
		t.record(src, uint32(t.plain))
	}
	t.bytes += n
	t.srcEnd = src + uint64(n)
}

// newPlace takes words off the end and returns the first.
func (t *table) newPlace(words int) int {
	t.top -= words
	return t.top
}

func (t *table) put64(at int, v uint64) {
	t.words[at], t.words[at+1] = uint32(v), uint32(v>>32)
}

// record appends a record for the bytes from t.bytes on.
func (t *table) record(src uint64, place uint32) {
	r := t.words[recordsWord+t.records*recordWords:][:recordWords]
	r[0], r[1], r[2] = t.bytes, uint32(src), uint32(src>>32)&0xffff|place<<16
	t.words[highWord] = uint32(src >> 48)
	t.records++
}

// addStrided appends a segment of runs; it must fit.
func (t *table) addStrided(s *runs) {
	place := t.newPlace(axesWord + axisWords*len(s.axes))
	t.put64(place, s.dst-uint64(t.bytes))
	t.words[place+runWord] = s.bytes
	t.putDivisor(place+runDivisorWord, s.bytes)
	t.words[place+shapeWord] = s.shape()
	for i := range s.axes {
		axis := &s.axes[len(s.axes)-1-i] // innermost first
		at := place + axesWord + i*axisWords
		t.words[at] = uint32(axis.N)
		t.putDivisor(at+1, uint32(axis.N))
		t.put64(at+3, uint64(axis.SrcStep))
		t.put64(at+5, uint64(axis.DstStep))
	}
	t.record(s.src, uint32(place)|stridedBit)
	t.bytes += uint32(s.payload)
	t.plain, t.srcEnd = 0, 0
}

func (t *table) putDivisor(at int, d uint32) { putDivisor(t.words[at:at+2], d) }

// putDivisor writes the factor and the shift by which a kernel divides by d:
// n/d == (high(n*factor) + n) >> shift for every n below 2^31. See table.cuh.
func putDivisor(words []uint32, d uint32) {
	shift := bits.Len32(d - 1)
	factor := (uint64(1)<<shift-uint64(d))<<32/uint64(d) + 1
	words[0], words[1] = uint32(factor), uint32(shift)
}

// close writes the header.
func (t *table) close(tile uint32) {
	t.words[segmentsWord], t.words[bytesWord], t.words[tileWord] = uint32(t.records), t.bytes, tile
}
