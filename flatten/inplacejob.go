package flatten

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"
)

// An inPlaceJob is what PlanInPlace knows before it decides anything.
type inPlaceJob struct {
	l      *Layout
	places []Place
	blocks []Block
	o      Options

	move      Plan    // which bytes go where, from entries to outputs
	first     []int   // index of the first segment of each batch, and behind the last
	segmentOf []int   // per entry with bytes: its last segment; own entries have one
	span      []int64 // bytes from the lowest to the highest of each entry
	outBytes  []int64 // per batch

	fixed    []bool // per block: it must not be written
	freeRoom []bool // per block: no entry is its user
	byAddr   []int  // blocks by address, without those of no bytes
	own      []int  // entries with bytes in writable blocks, by address
	ownEntry []bool // per entry: it is one of own
	runs     []Run
	runOf    []int    // per block: index of its run, -1 for a fixed one
	lowest   []uint64 // per batch: lowest address of its own entries

	moving  []bool    // per segment: permutation moves it
	entries []stretch // room for fresh
	to, all []stretch // room for destinations and touched
	cells   cells     // room for permutation
	unread  []int     // room for sequence
	freed   []bool    // likewise
	user    []int32   // room for freedBy
}

// jobPool keeps the jobs of earlier plans for their memory. A plan of 2048 entries takes
// half a megabyte while it is made; fresh memory for it took a third of the time.
var jobPool = sync.Pool{New: func() any { return new(inPlaceJob) }}

// room is n zeros, in the memory of s if that is large enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// newInPlaceJob is a job that knows nothing but what it was given. The caller releases it.
func newInPlaceJob(l *Layout, places []Place, blocks []Block, o Options) *inPlaceJob {
	j := jobPool.Get().(*inPlaceJob)
	j.l, j.places, j.blocks, j.o = l, places, blocks, o
	return j
}

// release ends the use of a job and of its memory. What plans keep of it is theirs.
func (j *inPlaceJob) release() {
	j.l, j.places, j.blocks = nil, nil, nil
	j.move.Layout, j.move.axes, j.runs = nil, nil, nil
	jobPool.Put(j)
}

// survey checks the caller's lists and sorts what they say.
func (j *inPlaceJob) survey(entries []Entry) error {
	if err := j.l.checkOneDevice(); err != nil {
		return err
	}
	if err := j.buildPlan(entries); err != nil {
		return err
	}
	if len(j.places) != len(j.l.Rows) {
		return jobError(strconv.Itoa(len(j.places))+" places", strconv.Itoa(len(j.l.Rows))+", one per entry")
	}
	if err := j.sortBlocks(); err != nil {
		return err
	}
	j.measure(entries)
	if err := j.checkPlaces(); err != nil {
		return err
	}
	j.findOwn(entries)
	j.findRuns()
	j.findLowest()
	return nil
}

// checkOneDevice makes sure that all batches live on one device.
func (l *Layout) checkOneDevice() error {
	for b := range l.Devices {
		if l.Devices[b] != l.Devices[0] {
			return &DeviceError{Key: -1, Batch: b, Got: l.Devices[b].String(), Want: l.Devices[0].String() + ", as batch 0"}
		}
	}
	return nil
}

// buildPlan plans the plain move and indexes its segments by batch.
func (j *inPlaceJob) buildPlan(entries []Entry) error {
	err := error(nil)
	if entries == nil {
		err = j.move.BuildPlain(j.l)
	} else {
		err = j.move.Build(j.l, entries, nil)
	}
	if err != nil {
		return err
	}
	j.first = room(j.first, j.l.Batches+1)
	j.segmentOf = room(j.segmentOf, len(j.l.Rows))
	for i := range j.move.Segments {
		j.first[j.move.Segments[i].Batch+1] = i + 1
		j.segmentOf[j.move.Segments[i].Entry] = i
	}
	for b := range j.l.Batches { // batches without segments
		j.first[b+1] = max(j.first[b+1], j.first[b])
	}
	return nil
}

// segments are those of batch b.
func (j *inPlaceJob) segments(b int) []Segment {
	return j.move.Segments[j.first[b]:j.first[b+1]]
}

// measure sizes entries and outputs.
func (j *inPlaceJob) measure(entries []Entry) {
	rowBytes := j.l.RowBytes()
	j.span = room(j.span, len(j.l.Rows))
	j.outBytes = room(j.outBytes, j.l.Batches)
	batch := 0
	for e, rows := range j.l.Rows {
		j.span[e] = rows * rowBytes
		j.outBytes[batch] += j.span[e]
		if batch++; batch == j.l.Batches {
			batch = 0
		}
		if entries != nil && entries[e].Strides != nil {
			lo, hi := entries[e].Span(j.l.DType.ElemBytes())
			j.span[e] = hi - lo
		}
	}
}

// maxAddress bounds addresses, so that sums of them and of sizes fit in 63 bits.
const maxAddress = 1 << 62

// sortBlocks checks the blocks and sorts them by address.
func (j *inPlaceJob) sortBlocks() error {
	j.byAddr = room(j.byAddr, len(j.blocks))[:0]
	for i, b := range j.blocks {
		if b.Lo > b.Hi || b.Hi > maxAddress || b.Bytes < 0 {
			return jobError(fmt.Sprintf("block %d at [%d, %d) of %d bytes", i, b.Lo, b.Hi, b.Bytes), "addresses in order, below 2^62, and no negative size")
		}
		if b.Lo < b.Hi {
			j.byAddr = append(j.byAddr, i)
		}
	}
	sortBy(j.byAddr, func(i int) uint64 { return j.blocks[i].Lo })
	reach, last := uint64(0), -1
	for _, i := range j.byAddr {
		b := j.blocks[i]
		if b.Lo < reach {
			return &OverlapError{Key: -1, Batch: -1, Got: fmt.Sprintf("blocks %d and %d share bytes", min(i, last), max(i, last)), Want: "blocks apart"}
		}
		reach, last = b.Hi, i
	}
	return nil
}

// sortBy sorts a list by a key, which is quick where it is in order, as entries that
// were made one after the other often are.
func sortBy(list []int, key func(int) uint64) {
	last := uint64(0)
	for _, i := range list {
		if key(i) < last {
			slices.SortFunc(list, func(a, b int) int { return cmp.Compare(key(a), key(b)) })
			return
		}
		last = key(i)
	}
}

// checkPlaces makes sure that each entry lies inside its block, or outside of all.
func (j *inPlaceJob) checkPlaces() error {
	for e, p := range j.places {
		if p.Block < -1 || p.Block >= len(j.blocks) {
			return j.l.shapeError(e, "block "+strconv.Itoa(p.Block), "-1 up to "+strconv.Itoa(len(j.blocks)-1))
		}
		if j.span[e] == 0 {
			continue
		}
		lo, hi := j.extent(e)
		if hi > maxAddress || lo > hi {
			return j.l.shapeError(e, fmt.Sprintf("address %d", lo), "an entry below address 2^62")
		}
		if p.Block >= 0 {
			if b := j.blocks[p.Block]; lo < b.Lo || hi > b.Hi {
				return j.l.shapeError(e, fmt.Sprintf("bytes [%d, %d)", lo, hi), fmt.Sprintf("a place in block %d at [%d, %d)", p.Block, b.Lo, b.Hi))
			}
		} else if i := j.blockAt(lo, hi); i >= 0 {
			k, b := e/j.l.Batches, e%j.l.Batches
			return &OverlapError{k, b, j.l.Name(k), "bytes shared with block " + strconv.Itoa(i), "a held entry outside of all blocks"}
		}
	}
	return nil
}

// extent is the addresses of entry e.
func (j *inPlaceJob) extent(e int) (lo, hi uint64) {
	lo = j.places[e].Addr
	return lo, lo + uint64(j.span[e])
}

// blockAt is a block that has a byte of [lo, hi), or -1.
func (j *inPlaceJob) blockAt(lo, hi uint64) int {
	if n := j.firstBlock(lo); n < len(j.byAddr) && j.blocks[j.byAddr[n]].Lo < hi {
		return j.byAddr[n]
	}
	return -1
}

// firstBlock is the index in byAddr of the first block that ends above addr.
func (j *inPlaceJob) firstBlock(addr uint64) int {
	return sort.Search(len(j.byAddr), func(n int) bool { return j.blocks[j.byAddr[n]].Hi > addr })
}

// findOwn finds out which blocks may be written, and the entries in them. A block
// is fixed also where one of its entries has strides, or shares bytes with
// another: such an entry would have to be at two places at once.
func (j *inPlaceJob) findOwn(entries []Entry) {
	j.fixed = room(j.fixed, len(j.blocks))
	j.freeRoom = room(j.freeRoom, len(j.blocks))
	for i, b := range j.blocks {
		j.fixed[i] = b.Fixed
		j.freeRoom[i] = b.Bytes == 0
	}
	j.own = room(j.own, len(j.places))[:0]
	for e, p := range j.places {
		if p.Block < 0 {
			continue
		}
		j.freeRoom[p.Block] = false
		if j.span[e] == 0 {
			continue
		}
		if entries != nil && !entries[e].packed(j.l.DType.ElemBytes()) {
			j.fixed[p.Block] = true
		}
		j.own = append(j.own, e)
	}
	sortBy(j.own, func(e int) uint64 { return j.places[e].Addr })
	j.fixSharers()
	j.own = slices.DeleteFunc(j.own, func(e int) bool { return j.fixed[j.places[e].Block] })
	j.ownEntry = room(j.ownEntry, len(j.places))
	for _, e := range j.own {
		j.ownEntry[e] = true
	}
}

// fixSharers fixes the blocks in which two entries share bytes.
func (j *inPlaceJob) fixSharers() {
	var reach uint64
	for _, e := range j.own {
		lo, hi := j.extent(e)
		if lo < reach {
			j.fixed[j.places[e].Block] = true
		}
		reach = max(reach, hi)
	}
}

// packed reports whether the elements lie one after the other, as in a
// contiguous view. Steps of dims of one element do not matter.
func (v View) packed(elemBytes int64) bool {
	packed := elemBytes
	for i := len(v.Shape) - 1; i >= 0; i-- {
		if v.Shape[i] > 1 && v.stride(i, packed) != packed {
			return false
		}
		packed *= v.Shape[i]
	}
	return true
}
