package launch

import (
	"math/bits"

	"github.com/goflat/goflat/flatten"
)

// A PermuteKernel is a set of entry points of gpu/kernels/permute.cu that differ only
// in where their table is.
type PermuteKernel uint8

// The kernels by the vectors that they move, of 1 << k bytes.
const (
	Permute1 PermuteKernel = iota
	Permute2
	Permute4
	Permute8
	Permute16
	// The kernels whose warps move slices that lie anywhere, of up to 2 and 4 vectors a thread.
	PermuteSlice2
	PermuteSlice4
	NumPermuteKernels
)

var permuteNames = [NumPermuteKernels]string{
	"permute_1", "permute_2", "permute_4", "permute_8", "permute_16",
	"permute_slice2", "permute_slice4",
}

// String is the kernel's name in the module, without the table.
func (k PermuteKernel) String() string { return permuteNames[k] }

// vector is the size in bytes of what a thread of the kernel moves at once; 0 where warps move
// slices.
func (k PermuteKernel) vector() int64 {
	if k > Permute16 {
		return 0
	}
	return 1 << k
}

// warp is the threads that move a slice together.
const warp = 32

// mostSlice is the largest slice of a kernel, in bytes. It begins up to 15 bytes into the first
// of its vectors; slices are multiples of 16 bytes, so that all of a unit begin alike.
func (k PermuteKernel) mostSlice() int64 {
	return 32*warp<<(k-PermuteSlice2) - 16
}

// The threads of a block, with a barrier and without: see gpu/kernels/permute.cu.
const (
	BarrierThreads = 1024
	chainThreads   = 256
)

// TablePlace is where a permutation's table lies.
type TablePlace uint8

// In the parameters, of either size, or in device memory.
const (
	Table4K TablePlace = iota
	Table32K
	TableFar
	NumTablePlaces
)

var tablePlaces = [NumTablePlaces]struct {
	suffix string
	words  int // of the parameters
}{{"_4k", 4096 / 4}, {"_32k", 32760 / 4}, {"_far", headWords}}

// Suffix is what a kernel's name ends in.
func (p TablePlace) Suffix() string { return tablePlaces[p].suffix }

// The words of a PermuteHead, see gpu/kernels/permute.cu.
const (
	originWord      = 0
	barrierWord     = 2
	tableWord       = 4
	grainWord       = 6
	columnsWord     = 7
	columnsDivisor  = 8
	groupsWord      = 10
	firstGroupWord  = 11
	positionsWord   = 12
	closedWord      = 13
	shareWord       = 14
	restWord        = 15
	arrivalsWord    = 16
	sliceWord       = 17
	lastWord        = 18
	headWords       = 20
	endBit          = 1 << 31
	noHead          = 1<<32 - 1
	maxGroups       = 16384         // what flatten.Permutation.TableBytes counts on
	maxItems        = 1<<31 - 1<<16 // threads of a launch that have something to do
	wholeChainSteps = 8
)

// A Permute writes the launches of a permutation. It is meant to be used again; it must
// not be used by two goroutines at once. Call Plan, then Write if the table is far, then
// Launches.
type Permute struct {
	p          *flatten.Permutation
	kernel     PermuteKernel
	place      TablePlace
	cut        bool   // groups are cut anywhere, and there is a barrier
	positions  uint32 // of chains that move something
	closed     uint32 // of these, in closed chains
	groups     uint32
	share      uint32 // positions of each group if all have the same number,
	rest       uint32 // and one more in so many
	columns    int64  // threads for a unit
	slice      int64  // bytes that a warp moves of it, 0 where threads move vectors
	parameters [32760 / 4]uint32
	out        PermuteLaunch
}

// PermuteOptions is what Plan needs to know of the device.
type PermuteOptions struct {
	// Resident is how many blocks of BarrierThreads threads of each kernel the device
	// runs at once; 0 where it has no cooperative launches.
	Resident *[NumPermuteKernels]uint32
	// Plain is for permute_byte: vectors of a byte, and the table in device memory.
	Plain bool
}

// A BarrierWord is a word of device memory that counts the blocks which have arrived at the
// barriers of its launches, one launch at a time.
type BarrierWord struct {
	Address  uint64
	Arrivals uint32 // its value when all launches are done
}

// A PermuteLaunch is one kernel launch: a grid of Blocks blocks of Threads threads in one
// dimension, with Parameters as the only parameter.
type PermuteLaunch struct {
	Kernel      PermuteKernel
	Place       TablePlace
	Blocks      uint32
	Threads     uint32
	Cooperative bool
	Parameters  []uint32 // valid until the function it was given to returns
}

// Plan decides how to run a permutation. It returns false if nothing moves.
func (r *Permute) Plan(p *flatten.Permutation, o *PermuteOptions) bool {
	chains, longest := r.count(p)
	if chains == 0 {
		return false
	}
	r.p, r.kernel = p, kernelFor(p)
	if o.Plain {
		r.kernel = Permute1
	}
	r.cutUnit()
	r.cutInto(chains, longest, int64(o.Resident[r.kernel])*BarrierThreads)
	r.place = TableFar
	for place := Table4K; place < TableFar && !o.Plain; place++ {
		if headWords+r.TableWords() <= tablePlaces[place].words {
			r.place = place
			break
		}
	}
	return true
}

// Forget drops the permutation.
func (r *Permute) Forget() { r.p = nil }

// count sets positions and closed and returns how many chains there are of more than one
// position, which are those that move something, and the longest one's positions.
func (r *Permute) count(p *flatten.Permutation) (chains int, longest int64) {
	var all, closed, start int32
	for i, end := range p.Ends {
		n := end - start
		start = end
		if n < 2 {
			continue
		}
		chains++
		longest = max(longest, int64(n))
		all += n
		if p.Closed[i] {
			closed += n
		}
	}
	r.positions, r.closed = uint32(all), uint32(closed)
	return chains, longest
}

// kernelFor returns the kernel of the largest vectors that all units consist of, or of slices
// where these are short.
func kernelFor(p *flatten.Permutation) PermuteKernel {
	k := min(PermuteKernel(bits.TrailingZeros64(uint64(p.Unit)|p.Origin|uint64(p.Grain))), Permute16)
	switch {
	case k == Permute16 || p.Unit < leastSliced[k]:
		return k
	case p.Unit <= PermuteSlice2.mostSlice():
		return PermuteSlice2
	default:
		return PermuteSlice4
	}
}

// leastSliced is, by the vectors that units consist of, the least unit for slices, in bytes. Of
// shorter ones most threads of a warp would idle. On an H200 vectors of 1, 2, 4 and 8 bytes take 5.1,
// 3.2, 2.3 and 1.7 times as long as memcpy, slices of units of 260 bytes 2.5, of 1001 bytes 1.7, of
// 4 KB 1.5; where they meet is interpolated.
var leastSliced = [Permute16]int64{128, 192, 384, 1009}

// cutUnit decides what threads move of a unit.
func (r *Permute) cutUnit() {
	r.slice = 0
	if v := r.kernel.vector(); v > 0 {
		r.columns = r.p.Unit / v
		return
	}
	slices := (r.p.Unit + r.kernel.mostSlice() - 1) / r.kernel.mostSlice()
	r.slice = ((r.p.Unit+slices-1)/slices + 15) / 16 * 16
	r.columns = warp * ((r.p.Unit + r.slice - 1) / r.slice)
}

// cutInto decides between the two kinds of groups. Whole chains need no barrier, but a
// long chain keeps its threads busy when all others are done: it may take a quarter of
// what each of the resident threads has to do, or a few steps. These two are guesses: chains of
// 2 and of thousands were measured, and nothing in between.
func (r *Permute) cutInto(chains int, longest, resident int64) {
	most := min(resident/r.columns, int64(r.positions/2), maxGroups)
	perThread := int64(r.positions) * r.columns / max(resident, 1)
	r.cut = most >= 2 && longest > max(wholeChainSteps, perThread/4)
	r.groups = uint32(min(chains, maxGroups))
	if r.cut {
		r.groups = uint32(most)
	}
	r.share, r.rest = r.positions/r.groups, r.positions%r.groups
}

// TableWords is the length of the table.
func (r *Permute) TableWords() int { return int(r.positions + r.groups) }

// Far reports whether the table has to lie in device memory.
func (r *Permute) Far() bool { return r.place == TableFar }

// Barrier reports whether the launch needs a word in device memory that counts blocks.
func (r *Permute) Barrier() bool { return r.cut }

// Launches calls launch for every launch and returns its first error, after which it
// calls it no more; the value of word is unknown then. word is used where [Permute.Barrier] is true, and
// table, the table's address, where [Permute.Far] is.
func (r *Permute) Launches(word *BarrierWord, table uint64, launch func(*PermuteLaunch) error) error {
	if r.place == TableFar {
		r.put64(tableWord, table)
	} else {
		r.put64(tableWord, 0)
		r.Write(r.parameters[headWords:][:r.TableWords()])
	}
	r.put64(barrierWord, 0)
	h := &r.parameters
	h[grainWord], h[groupsWord], h[positionsWord], h[closedWord] = uint32(r.p.Grain), r.groups, r.positions, r.closed
	h[shareWord], h[restWord] = r.share, r.rest
	r.out = PermuteLaunch{
		Kernel: r.kernel, Place: r.place, Threads: chainThreads, Cooperative: r.cut,
		Parameters: r.parameters[:tablePlaces[r.place].words],
	}
	if r.cut { // one launch, of no more threads than run at once
		r.out.Threads = BarrierThreads
		word.Arrivals += r.blocks(r.columns, r.groups)
		r.put64(barrierWord, word.Address)
		h[arrivalsWord] = word.Arrivals
	}
	for from := int64(0); from < r.columns; from += maxItems {
		if err := r.launchColumns(from, min(r.columns-from, maxItems), launch); err != nil {
			return err
		}
	}
	return nil
}

// launchColumns launches a range of columns, in as many launches as the groups need.
func (r *Permute) launchColumns(from, n int64, launch func(*PermuteLaunch) error) error {
	r.put64(originWord, r.p.Origin+uint64(r.offset(from)))
	r.parameters[columnsWord] = uint32(n)
	r.parameters[sliceWord], r.parameters[lastWord] = uint32(r.slice), 0
	if r.slice > 0 {
		r.parameters[lastWord] = uint32(min(r.slice, r.p.Unit-r.offset(from+n-warp)))
	}
	putDivisor(r.parameters[columnsDivisor:], uint32(n))
	atOnce := uint32(min(maxItems/n, maxGroups))
	for first := uint32(0); first < r.groups; first += atOnce {
		r.parameters[firstGroupWord] = first
		r.out.Blocks = r.blocks(n, min(atOnce, r.groups-first))
		if err := launch(&r.out); err != nil {
			return err
		}
	}
	return nil
}

// offset is where in a unit a column begins.
func (r *Permute) offset(column int64) int64 {
	if r.slice > 0 {
		return column / warp * r.slice
	}
	return column * r.kernel.vector()
}

// blocks is how many a launch of so many columns and groups has.
func (r *Permute) blocks(columns int64, groups uint32) uint32 {
	threads := int64(r.out.Threads)
	return uint32((columns*int64(groups) + threads - 1) / threads)
}

func (r *Permute) put64(at int, v uint64) {
	r.parameters[at], r.parameters[at+1] = uint32(v), uint32(v>>32)
}

// Write writes the table: closed chains, then paths, then the groups.
func (r *Permute) Write(table []uint32) {
	w := permuteWriter{r: r, table: table}
	w.chains(true)
	if r.closed < r.positions {
		w.chains(false)
	}
	for w.group < r.groups { // only of whole chains: these are empty
		w.next(r.positions)
	}
}

// A permuteWriter has written the positions below at, and the groups below group.
type permuteWriter struct {
	r         *Permute
	table     []uint32
	at, group uint32
}

// chains writes all closed chains, or all paths.
func (w *permuteWriter) chains(closed bool) {
	p := w.r.p
	start := int32(0)
	for i, end := range p.Ends {
		if n := end - start; n >= 2 && p.Closed[i] == closed {
			copy(w.table[w.at:], p.Pos[start:end])
			w.table[w.at+uint32(n)-1] |= endBit
			w.groups(w.at, w.at+uint32(n), closed)
			w.at += uint32(n)
		}
		start = end
	}
}

// groups writes the words of the groups that begin in a chain or, if groups are whole
// chains, with it.
func (w *permuteWriter) groups(start, end uint32, closed bool) {
	if !w.r.cut {
		for w.group < w.r.groups && w.r.bound(w.group) <= start {
			w.next(start)
		}
		return
	}
	for w.group < w.r.groups && w.r.bound(w.group) < end {
		head := uint32(noHead)
		if closed && end <= w.r.bound(w.group+1) {
			head = start
		}
		w.next(head)
	}
}

func (w *permuteWriter) next(v uint32) {
	w.table[w.r.positions+w.group] = v
	w.group++
}

// bound is where a group begins if all have the same number of positions, up to one.
func (r *Permute) bound(group uint32) uint32 {
	return group*r.share + min(group, r.rest)
}
