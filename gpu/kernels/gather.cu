// gather.cu: copies segments to where the outputs want them, all of a device's
// batches in one launch.
//
// Launched by gpu.Gather with the table of table.cuh as its only parameter, one group
// of threads a tile: 512 threads ("block") for long segments, 32 for short ones ("warp",
// "narrow") and for runs (strided.cuh). Source and destination may have any alignment; where
// they differ modulo 16 the loads stay aligned and the bytes are shifted together. No
// byte outside the segments is read or written, so segments may end where an
// allocation does.
//
// The floor is cudaMemcpy of the same bytes. On an H200 whose L2 is full of other data the
// block form takes 1.015 times as long at 3.2 and 1.9 GB, the warp form 1.04 to 1.1 at 40 MB, pieces 1.07
// and vectors 1.06. docs/adr/0014-gather-kernels-by-size.md has the forms that lost. What decides:
//
//   - Loads in flight a thread: a block of 512 threads with 4 and two blocks a multiprocessor,
//     or with 2 and three, at 3.2 GB; with 1 and four 1.18, with 1,024 threads 1.18.
//   - Tiles: 32 KiB a block, 2 KiB a warp (gpu/internal/launch/kernel.go).
//   - Registers: a kernel for each kind of runs. In one for all, those of the greediest kind hold
//     for all: slots take 1.6 instead of 1.5 times as long as memcpy.
#include "copy.cuh"
#include "strided.cuh"
#include "table.cuh"

// A Tile is the numbers [lo, hi).
struct Tile {
    u32 lo, hi;
};

DEVICE Tile tile_of(const u32 *table, u32 group)
{
    Tile t;
    t.lo = group * table[TILE_WORD];
    t.hi = smaller(t.lo + table[TILE_WORD], table[BYTES_WORD]);
    return t;
}

template <u32 LANES> DEVICE Tile my_tile(const u32 *table)
{
    return tile_of(table, (blockIdx.x * blockDim.x + threadIdx.x) / LANES);
}

// below returns how much of segment s lies below a number, in numbers of s.
DEVICE u32 below(const Segment &s, u32 number)
{
    return number <= s.first ? 0 : smaller(number - s.first, s.bytes);
}

template <u32 LANES, u32 LOADS> DEVICE void copy_plain(const Segment &s, Tile t, u32 lane)
{
    Stretch stretch = {s.dst, s.src, s.bytes, cut(s.dst, below(s, t.lo), s.bytes), cut(s.dst, below(s, t.hi), s.bytes)};
    if (stretch.from < stretch.to)
        copy_stretch<LANES, LOADS>(stretch, lane);
}

// gather copies the tile of this thread's group.
template <typename R, u32 LANES, u32 LOADS> DEVICE void gather(const u32 *table)
{
    const Tile t = my_tile<LANES>(table);
    if (t.lo >= table[BYTES_WORD])
        return;
    ROLLED
    for (u32 i = segment_at<R>(table, t.lo); first_number<R>(table, i) < t.hi; i++)
        copy_plain<LANES, LOADS>(read_segment<R>(table, i), t, threadIdx.x % LANES);
}

// gather_mixed is gather for warps and segments of any kind.
template <u32 LOADS> DEVICE void gather_mixed(const u32 *table)
{
    const Tile t = my_tile<32>(table);
    const u32 lane = threadIdx.x % 32;
    if (t.lo >= table[BYTES_WORD])
        return;
    ROLLED
    for (u32 i = segment_at(table, t.lo); first_number(table, i) < t.hi; i++) {
        const Segment s = read_segment(table, i);
        if (s.strided)
            copy_strided<LOADS>(table, s, below(s, t.lo), below(s, t.hi), lane);
        else
            copy_plain<32, LOADS>(s, t, lane);
    }
}

// my_turn is my_tile for short runs. If the upper half of word 3 says so, the first tiles of all
// segments come first, then the second ones: for segments of the same length.
DEVICE Tile my_turn(const u32 *table)
{
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, segments = table[SEGMENTS_WORD];
    if (table[HIGH_WORD] >> 16 == 0)
        return tile_of(table, warp);
    const u32 each = (table[BYTES_WORD] + table[TILE_WORD] - 1) / table[TILE_WORD] / segments;
    return tile_of(table, warp < each * segments ? warp % segments * each + warp / segments : warp);
}

enum Kind { VECTORS, SLOTS, UNITS };

// gather_short copies the tile of this thread's warp.
template <Kind KIND> DEVICE void gather_short(const u32 *table)
{
    const Tile t = my_turn(table);
    const u32 lane = threadIdx.x % 32;
    if (t.lo >= table[BYTES_WORD])
        return;
    ROLLED
    for (u32 i = segment_at(table, t.lo); first_number(table, i) < t.hi; i++) {
        const Segment s = read_segment(table, i);
        const u32 from = below(s, t.lo), to = below(s, t.hi);
        if constexpr (KIND == VECTORS)
            copy_units<Vec16, 16, 4>(table, s, from, to, lane);
        else if constexpr (KIND == SLOTS)
            copy_slots<2>(table, s, from, to, lane);
        else
            copy_tiny<4>(table, s, from, to, lane);
    }
}

// gather_pieces copies the piece of this thread's warp.
template <u32 LOADS> DEVICE void gather_pieces(const u32 *table)
{
    const u32 number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (number >= table[BYTES_WORD])
        return;
    const Segment s = read_segment(table, segment_at(table, number));
    copy_piece<LOADS>(table, s, number - s.first, threadIdx.x % 32);
}

KERNEL(512, 2) gather_block_4k(PARAMETER(Table4K) table)
{
    gather<Records, 512, 4>(table.word);
}

KERNEL(512, 2) gather_block_32k(PARAMETER(Table32K) table)
{
    gather<Records, 512, 4>(table.word);
}

KERNEL(256, 4) gather_warp_4k(PARAMETER(Table4K) table)
{
    gather<Records, 32, 4>(table.word);
}

KERNEL(256, 4) gather_warp_32k(PARAMETER(Table32K) table)
{
    gather<Records, 32, 4>(table.word);
}

KERNEL(256, 4) gather_narrow_9k(PARAMETER(Table9K) table)
{
    gather<NarrowRecords, 32, 4>(table.word);
}

KERNEL(256, 4) gather_narrow_18k(PARAMETER(Table18K) table)
{
    gather<NarrowRecords, 32, 4>(table.word);
}

KERNEL(256, 4) gather_narrow_32k(PARAMETER(Table32K) table)
{
    gather<NarrowRecords, 32, 4>(table.word);
}

KERNEL(256, 4) gather_pieces_4k(PARAMETER(Table4K) table)
{
    gather_pieces<4>(table.word);
}

KERNEL(256, 4) gather_pieces_9k(PARAMETER(Table9K) table)
{
    gather_pieces<4>(table.word);
}

KERNEL(256, 4) gather_pieces_32k(PARAMETER(Table32K) table)
{
    gather_pieces<4>(table.word);
}

KERNEL(256, 4) gather_vectors_4k(PARAMETER(Table4K) table)
{
    gather_short<VECTORS>(table.word);
}

KERNEL(256, 4) gather_vectors_9k(PARAMETER(Table9K) table)
{
    gather_short<VECTORS>(table.word);
}

KERNEL(256, 4) gather_vectors_32k(PARAMETER(Table32K) table)
{
    gather_short<VECTORS>(table.word);
}

KERNEL(256, 4) gather_slots_4k(PARAMETER(Table4K) table)
{
    gather_short<SLOTS>(table.word);
}

KERNEL(256, 4) gather_slots_9k(PARAMETER(Table9K) table)
{
    gather_short<SLOTS>(table.word);
}

KERNEL(256, 4) gather_slots_32k(PARAMETER(Table32K) table)
{
    gather_short<SLOTS>(table.word);
}

KERNEL(256, 3) gather_units_4k(PARAMETER(Table4K) table)
{
    gather_short<UNITS>(table.word);
}

KERNEL(256, 3) gather_units_9k(PARAMETER(Table9K) table)
{
    gather_short<UNITS>(table.word);
}

KERNEL(256, 3) gather_units_32k(PARAMETER(Table32K) table)
{
    gather_short<UNITS>(table.word);
}

KERNEL(256, 3) gather_mixed_4k(PARAMETER(Table4K) table)
{
    gather_mixed<4>(table.word);
}

KERNEL(256, 3) gather_mixed_32k(PARAMETER(Table32K) table)
{
    gather_mixed<4>(table.word);
}
