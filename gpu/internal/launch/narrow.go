package launch

import (
	"math/bits"

	"github.com/goflat/goflat/flatten"
)

// Words of a narrow table, see gpu/kernels/table.cuh.
const (
	bitsWord          = 3
	lowWord           = 4
	firstPlaceWord    = 6
	narrowRecordsWord = 8
	narrowRecordWords = 2
)

// A narrow is how the records of a table fit into two words: sources and first numbers as
// multiples of powers of two, and places counted. That makes the parameters of small
// jobs a third shorter, which is time: see Table4K in gpu/kernels/table.cuh.
type narrow struct {
	low     uint64 // source address that others count from
	sources uint8  // log2 of what they are multiples of, from there on
	numbers uint8  // log2 of what first numbers are multiples of
	places  uint8  // bits of a place; first numbers have the rest of 32
}

// most returns how many numbers a table may have.
func (n *narrow) most() uint32 {
	return uint32(min(maxNumbers, uint64(1)<<(32-n.places+n.numbers)))
}

// place returns the count of a place from its word.
func (n *narrow) place(capacity, word int) int { return (capacity-word)/placeWords - 1 }

// record returns a record.
func (n narrow) record(src uint64, number, place uint32) (source, rest uint32) {
	return uint32((src - n.low) >> (n.sources & 63)), number>>(n.numbers&31)<<(n.places&31) | place
}

// header writes what the kernel needs to read records.
func (n *narrow) header(words []uint32) {
	words[bitsWord] = uint32(n.numbers) | uint32(n.sources)<<8 | uint32(n.places)<<16
	words[lowWord], words[lowWord+1] = uint32(n.low), uint32(n.low>>32)
	words[firstPlaceWord] = uint32(len(words) - placeWords)
}

// A spread is how the plain segments of a job differ. Its zero value is of none.
type spread struct {
	low, high uint64 // source addresses, low's bits inverted
	any, none uint64 // bits that any source address has, and that any lacks
	lengths   uint64 // bits that any length has
	offsets   uint64 // bits that any offset from these addresses has
	farthest  uint64 // offset
}

// segment adds a segment of n bytes, at an offset from a source address.
func (s *spread) segment(src, offset, n uint64) {
	s.low, s.high = max(s.low, ^src), max(s.high, src)
	s.any |= src
	s.none |= ^src
	s.lengths |= n
	s.offsets |= offset
	s.farthest = max(s.farthest, offset)
}

// entries adds the addresses of entries, of those on a device unless devices is nil. It takes them in
// their order, which is faster by far than that of segments, and keeps what it adds up in registers.
func (s *spread) entries(sources []uintptr, devices []flatten.Device, device flatten.Device) {
	low, high, all, none := s.low, s.high, s.any, s.none
	for e, address := range sources {
		src := uint64(address)
		if src == 0 || devices != nil && devices[e%len(devices)] != device { // entries without rows may have no address
			continue
		}
		low, high = max(low, ^src), max(high, src)
		all |= src
		none |= ^src
	}
	s.low, s.high, s.any, s.none = low, high, all, none
}

// maxShift bounds the multiples, so that a segment may be cut at maxNumbers.
const maxShift = 16

// narrow returns how to write the records of so many segments and places, and whether
// tables would then be cut only where their words end. bytes is of all segments.
func (s *spread) narrow(segments, places int, bytes int64) (n narrow, ok bool) {
	n.low = ^s.low
	n.sources = uint8(min(bits.TrailingZeros64(s.any&s.none|s.offsets), maxShift))
	n.numbers = uint8(min(bits.TrailingZeros64(s.lengths), maxShift))
	const full = (LargeWords - narrowRecordsWord) / narrowRecordWords // segments of a table, at most
	if segments > full {
		bytes = bytes / int64(segments) * full
		places = places*full/segments + 2 // on average
		places += places / 8
	}
	n.places = uint8(bits.Len(uint(max(places, 2) - 1)))
	return n, (s.high-n.low+s.farthest)>>n.sources < 1<<32 && bytes <= int64(n.most())
}
