package launch

// A Kernel is one of the entry points of gpu/kernels/gather.cu.
type Kernel uint8

// The kernels: by who moves a tile, and by the size of their parameters.
const (
	Block4K Kernel = iota
	Block32K
	Warp4K
	Warp16K
	Warp25K
	Warp32K
	Strided4K
	Strided32K
	NumKernels
)

var kernels = [NumKernels]struct {
	name    string
	threads uint32 // a block
	lanes   uint32 // threads that move one tile together
	words   int    // of the table
}{
	Block4K:    {"gather_block_4k", 512, 512, SmallWords},
	Block32K:   {"gather_block_32k", 512, 512, LargeWords},
	Warp4K:     {"gather_warp_4k", 256, 32, SmallWords},
	Warp16K:    {"gather_warp_16k", 256, 32, MiddleWords},
	Warp25K:    {"gather_warp_25k", 256, 32, WideWords},
	Warp32K:    {"gather_warp_32k", 256, 32, LargeWords},
	Strided4K:  {"gather_strided_4k", 256, 32, SmallWords},
	Strided32K: {"gather_strided_32k", 256, 32, LargeWords},
}

// String is the kernel's name in the module.
func (k Kernel) String() string { return kernels[k].name }

// Words is the length of the kernel's table.
func (k Kernel) Words() int { return kernels[k].words }

// Threads is the number of threads of a block.
func (k Kernel) Threads() uint32 { return kernels[k].threads }

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

// blocks returns how many blocks cover so many bytes in tiles of a size.
func (k Kernel) blocks(bytes, tile uint32) uint32 {
	tiles := (bytes + tile - 1) / tile
	perBlock := kernels[k].threads / kernels[k].lanes
	return (tiles + perBlock - 1) / perBlock
}

// tile returns the tile for so many bytes on a device of so many multiprocessors.
//
// Large jobs take the tiles that are the fastest on an H200: 32 KiB a block (one round of
// four loads a thread, gpu/kernels/gather.cu) and 2 KiB a warp (one round of four). Small
// jobs take smaller ones, so that there are at least 4 blocks or 8 warps a multiprocessor;
// for 1 MB in 2048 segments 8 warps take 1.85 times as long as memcpy, 16 take 1.94, 32
// take 2.26.
func (k Kernel) tile(bytes uint32, multiprocessors int) uint32 {
	least, most, perMultiprocessor := uint32(128), uint32(2<<10), uint32(8)
	switch {
	case kernels[k].lanes > 32:
		least, most, perMultiprocessor = 8<<10, 32<<10, 4
	case k == Strided4K || k == Strided32K:
		most = 4 << 10
	}
	share := bytes / (perMultiprocessor * uint32(multiprocessors))
	tile := least
	for tile < most && tile*2 <= share {
		tile *= 2
	}
	return tile
}
