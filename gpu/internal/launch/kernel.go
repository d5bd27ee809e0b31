package launch

import "math/bits"

// A Kernel is one of the entry points of gpu/kernels/gather.cu.
type Kernel uint8

// The kernels: by who moves what, and by the size of their parameters.
const (
	Block4K Kernel = iota
	Block32K
	Warp4K
	Warp32K
	Narrow9K
	Narrow18K
	Narrow32K
	Pieces4K
	Pieces9K
	Pieces32K
	Vectors4K
	Vectors9K
	Vectors32K
	Slots4K
	Slots9K
	Slots32K
	Units4K
	Units9K
	Units32K
	Mixed4K
	Mixed32K
	NumKernels
)

// A form is what a kernel's tables number and hold. See gpu/kernels/table.cuh.
type form uint8

const (
	plainForm   form = iota // bytes of plain segments
	narrowForm              // the same with records of two words
	piecesForm              // pieces of whole runs
	vectorsForm             // aligned units of 16 bytes of runs
	slotsForm               // slots of runs
	unitsForm               // units or words of runs
	mixedForm               // bytes of segments of any kind
)

var kernels = [NumKernels]struct {
	name    string
	threads uint32 // a block
	lanes   uint32 // threads that move one tile together
	words   int    // of the table
	form    form
}{
	Block4K:    {"gather_block_4k", 512, 512, SmallWords, plainForm},
	Block32K:   {"gather_block_32k", 512, 512, LargeWords, plainForm},
	Warp4K:     {"gather_warp_4k", 256, 32, SmallWords, plainForm},
	Warp32K:    {"gather_warp_32k", 256, 32, LargeWords, plainForm},
	Narrow9K:   {"gather_narrow_9k", 256, 32, NineWords, narrowForm},
	Narrow18K:  {"gather_narrow_18k", 256, 32, EighteenWords, narrowForm},
	Narrow32K:  {"gather_narrow_32k", 256, 32, LargeWords, narrowForm},
	Pieces4K:   {"gather_pieces_4k", 256, 32, SmallWords, piecesForm},
	Pieces9K:   {"gather_pieces_9k", 256, 32, NineWords, piecesForm},
	Pieces32K:  {"gather_pieces_32k", 256, 32, LargeWords, piecesForm},
	Vectors4K:  {"gather_vectors_4k", 256, 32, SmallWords, vectorsForm},
	Vectors9K:  {"gather_vectors_9k", 256, 32, NineWords, vectorsForm},
	Vectors32K: {"gather_vectors_32k", 256, 32, LargeWords, vectorsForm},
	Slots4K:    {"gather_slots_4k", 256, 32, SmallWords, slotsForm},
	Slots9K:    {"gather_slots_9k", 256, 32, NineWords, slotsForm},
	Slots32K:   {"gather_slots_32k", 256, 32, LargeWords, slotsForm},
	Units4K:    {"gather_units_4k", 256, 32, SmallWords, unitsForm},
	Units9K:    {"gather_units_9k", 256, 32, NineWords, unitsForm},
	Units32K:   {"gather_units_32k", 256, 32, LargeWords, unitsForm},
	Mixed4K:    {"gather_mixed_4k", 256, 32, SmallWords, mixedForm},
	Mixed32K:   {"gather_mixed_32k", 256, 32, LargeWords, mixedForm},
}

// String is the kernel's name in the module.
func (k Kernel) String() string { return kernels[k].name }

// Words is the length of the kernel's table.
func (k Kernel) Words() int { return kernels[k].words }

// Threads is the number of threads of a block.
func (k Kernel) Threads() uint32 { return kernels[k].threads }

// Narrow reports whether the kernel's tables have records of two words.
func (k Kernel) Narrow() bool { return kernels[k].form == narrowForm }

// fitting returns the kernel that does the same as k, the one of the smallest parameters,
// with the smallest that hold so many words, or else the largest. Sizes matter to small jobs, which
// go to warps: an empty launch takes 3.0 µs on an H200 with 4 KiB and 5.4 with 32 KiB, a
// gather of 16 MB in 1,024 segments 16.
func (k Kernel) fitting(words int) Kernel {
	for kernels[k].words < words && kernels[k].words < LargeWords {
		k++
	}
	return k
}

// blocks returns how many blocks take so many tiles.
func (k Kernel) blocks(tiles uint32) uint32 {
	perBlock := kernels[k].threads / kernels[k].lanes
	return (tiles + perBlock - 1) / perBlock
}

// inTurns reports whether the kernel can take tiles from each segment in turns, see table.inTurns.
func (k Kernel) inTurns() bool {
	f := kernels[k].form
	return f == vectorsForm || f == slotsForm || f == unitsForm
}

// tile returns the tile, in numbers, for a table of so many numbers that stand for so many
// bytes, on a device of so many multiprocessors.
func (k Kernel) tile(numbers uint32, bytes int64, multiprocessors int) uint32 {
	switch {
	case kernels[k].form == piecesForm:
		return 1
	case k.inTurns():
		slots := uint64(k.tileBytes(bytes, multiprocessors)) * uint64(numbers) / uint64(bytes)
		return uint32(max(32, uint64(1)<<bits.Len64(slots)>>1))
	}
	return k.tileBytes(bytes, multiprocessors)
}

// tileBytes is tile in bytes.
//
// Large jobs take the tiles that are the fastest on an H200: 32 KiB a block (one round of
// four loads a thread, gpu/kernels/gather.cu) and 2 KiB a warp (one round of four). Small
// jobs take smaller ones, so that there are at least 4 blocks or 8 warps a multiprocessor;
// for 1 MB in 2048 segments 8 warps take 1.85 times as long as memcpy, 16 take 1.94, 32
// take 2.26.
func (k Kernel) tileBytes(bytes int64, multiprocessors int) uint32 {
	least, most, perMultiprocessor := uint32(128), uint32(2<<10), int64(8)
	switch {
	case kernels[k].lanes > 32:
		least, most, perMultiprocessor = 8<<10, 32<<10, 4
	case kernels[k].form == mixedForm:
		most = 4 << 10
	}
	share := bytes / (perMultiprocessor * int64(multiprocessors))
	tile := least
	for tile < most && int64(tile)*2 <= share {
		tile *= 2
	}
	return tile
}
