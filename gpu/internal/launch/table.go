package launch

import "math/bits"

// The layout of a table, as in gpu/kernels/table.cuh.
const (
	SmallWords    = 4096 / 4  // what every launch may have
	NineWords     = 9216 / 4  // 1,024 narrow records, and places of 124 batches
	EighteenWords = 18432 / 4 // 2,048 narrow records, and places of 252 batches
	LargeWords    = 32764 / 4 // what drivers from CUDA 12.1 on take

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
	perRunWord     = 6
	axesWord       = 7
	axisWords      = 7
)

// maxNumbers is how many numbers one launch has at most: below 2^31, which the kernels'
// division by multiplication needs, and a multiple of 2^16, so that cutting a segment
// there leaves its alignment alone.
const maxNumbers = 1<<31 - 1<<16

// A table is the parameters of a launch while they are written: records grow from
// the front, places from the end.
type table struct {
	words    [LargeWords]uint32
	kernel   Kernel
	capacity int    // words in use, those of the kernel
	records  int    // written
	top      int    // lowest word of the places
	numbers  uint32 // of the records
	most     uint32 // numbers that there may be
	bytes    int64  // that the records move
	base     uint64 // destination minus first number, of the lowest plain place
	plain    int    // that place's word, 0 if there is none
	srcEnd   uint64 // where the source of the last record ends, if it is plain, else 0
	narrow   narrow // how records are written, where they are narrow
	each     uint32 // numbers of each strided segment; 0 if they differ
}

// reset empties the table and makes it one of a kernel's.
func (t *table) reset(k Kernel) {
	t.kernel, t.capacity, t.most = k, k.Words(), maxNumbers
	t.records, t.top, t.numbers, t.bytes = 0, t.capacity, 0, 0
	t.plain, t.srcEnd, t.each = 0, 0, 0
	if t.form() == narrowForm {
		t.most = t.narrow.most()
	}
}

func (t *table) form() form { return kernels[t.kernel].form }

// room returns the words that are neither record nor place.
func (t *table) room() int {
	if t.form() == narrowForm {
		return t.top - narrowRecordsWord - t.records*narrowRecordWords
	}
	return t.top - recordsWord - t.records*recordWords
}

// fits reports whether another segment of so many numbers has room for itself and a place.
// The sources of a table share the upper 16 bits of their addresses.
func (t *table) fits(src, numbers uint64, place int) bool {
	if t.room() < recordWords+place || uint64(t.numbers)+numbers > uint64(t.most) {
		return false
	}
	if t.form() == narrowForm {
		return t.narrow.place(t.capacity, t.top-placeWords) < 1<<t.narrow.places
	}
	return t.records == 0 || uint32(src>>48) == t.words[highWord]
}

// addPlain appends a segment of contiguous bytes; it must fit.
func (t *table) addPlain(dst, src uint64, n uint32) {
	base := dst - uint64(t.numbers)
	if t.plain == 0 || base != t.base {
		t.plain, t.base = t.newPlace(placeWords), base
		t.put64(t.plain, base)
		t.srcEnd = 0
	}
	if t.srcEnd == 0 || t.srcEnd != src {
		t.record(src, t.plain)
	}
	t.numbers += n
	t.bytes += int64(n)
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

// record appends a record for the numbers from t.numbers on. place has stridedBit if it is a
// strided one's.
func (t *table) record(src uint64, place int) {
	if t.form() == narrowForm {
		at := narrowRecordsWord + t.records*narrowRecordWords
		t.words[at], t.words[at+1] = t.narrow.record(src, t.numbers, uint32(t.narrow.place(t.capacity, place)))
	} else {
		r := t.words[recordsWord+t.records*recordWords:][:recordWords]
		r[0], r[1], r[2] = t.numbers, uint32(src), uint32(src>>32)&0xffff|uint32(place)<<16
		t.words[highWord] = uint32(src >> 48)
	}
	t.records++
}

// A writer writes records of segments that follow one another at the lowest plain place. What changes
// from record to record is its callers', who keep it in registers.
type writer struct {
	records    []uint32 // and the words up to the places
	size       int      // of a record
	most       int64    // numbers
	high, mask uint64   // of sources, which all are as high
	narrow     bool
	pack       narrow
	place      uint32
}

// writer returns a writer and the word of its next record.
func (t *table) writer() (w writer, at int) {
	w.most = int64(t.most)
	if t.form() == narrowForm {
		w.records, w.size, w.narrow, w.pack = t.words[narrowRecordsWord:t.top], narrowRecordWords, true, t.narrow
		w.place = uint32(t.narrow.place(t.capacity, t.plain))
	} else {
		w.records, w.size, w.place = t.words[recordsWord:t.top], recordWords, uint32(t.plain)<<16
		w.high, w.mask = uint64(t.words[highWord])<<48, 0xffff<<48
	}
	return w, t.records * w.size
}

// fits reports whether there is room for a record at a word, and for bytes up to a number.
func (w *writer) fits(at int, src uint64, number int64) bool {
	return number <= w.most && at+w.size <= len(w.records) && src&w.mask == w.high
}

// put writes a record.
func (w *writer) put(at int, src uint64, number uint32) {
	r := w.records[at : at+w.size : at+w.size]
	if w.narrow {
		r[0], r[1] = w.pack.record(src, number, w.place)
	} else {
		r[0], r[1], r[2] = number, uint32(src), uint32(src>>32)&0xffff|w.place
	}
}

// written takes what a writer wrote: records up to a word, bytes up to a number, whose source ends
// at an address.
func (t *table) written(w *writer, at int, number int64, end uint64) {
	t.bytes += number - int64(t.numbers)
	t.records, t.numbers, t.srcEnd = at/w.size, uint32(number), end
}

// addStrided appends a segment of runs; it must fit.
func (t *table) addStrided(r *runs) {
	place := t.newPlace(axesWord + axisWords*len(r.axes))
	perRun := r.perRun(t.form())
	t.put64(place, r.dst)
	t.words[place+runWord], t.words[place+perRunWord] = r.bytes, perRun
	t.putDivisor(place+runDivisorWord, perRun)
	t.words[place+shapeWord] = r.shape(t.form())
	for i := range r.axes {
		axis := &r.axes[len(r.axes)-1-i] // innermost first
		at := place + axesWord + i*axisWords
		t.words[at] = uint32(axis.N)
		t.putDivisor(at+1, uint32(axis.N))
		t.put64(at+3, uint64(axis.SrcStep))
		t.put64(at+5, uint64(axis.DstStep))
	}
	each := uint32(r.numbers(t.form()))
	if t.records > 0 && each != t.each {
		t.each = 0
	} else {
		t.each = each
	}
	t.record(r.src, place|stridedBit)
	t.numbers += uint32(r.numbers(t.form()))
	t.bytes += int64(r.payload)
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

// inTurns reports whether the first tiles of all segments come first, then the second ones: where
// segments are alike. In a concatenation along an inner dimension those are rows of the output, and
// what is written at a time lies together: rows of 33 two-byte elements take 2.5 times as long as memcpy
// so on an H200, and 4.5 one segment after the other. Where segments differ it is the slower way.
func (t *table) inTurns(tile uint32) bool {
	return t.kernel.inTurns() && t.each >= tile
}

// close writes the header.
func (t *table) close(tile uint32) {
	t.words[segmentsWord], t.words[bytesWord], t.words[tileWord] = uint32(t.records), t.numbers, tile
	if t.form() == narrowForm {
		t.narrow.header(t.words[:t.capacity])
	}
	if t.inTurns(tile) {
		t.words[highWord] = t.words[highWord]&0xffff | 1<<16
	}
}
