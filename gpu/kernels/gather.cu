// gather.cu: copies segments to where the outputs want them, all of a device's
// batches in one launch.
//
// Launched by gpu.Gather with the table of table.cuh as its only parameter, one group
// of threads a tile: 512 threads ("block") for long segments, 32 ("warp") for short
// and for strided ones. Source and destination may have any alignment; where they
// differ modulo 16 the loads stay aligned and the bytes are shifted together. No
// byte outside the segments is read or written, so segments may end where an
// allocation does.
//
// The floor is cudaMemcpy of the same bytes. On an H200 whose L2 is full of other data the
// block form takes 1.015 times as long at 3.2 and 1.9 GB, the warp form 1.05 to 1.1 at 40 MB.
// docs/adr/0014-gather-kernels-by-size.md has the forms that lost. What decides:
//
//   - Loads in flight a thread: a block of 512 threads with 4 and two blocks a multiprocessor,
//     or with 2 and three, at 3.2 GB; with 1 and four 1.18, with 1,024 threads 1.18.
//   - Tiles: 32 KiB a block, 2 KiB a warp (gpu/internal/launch/kernel.go).
//   - Warps that move runs: three blocks of 256 threads although a few registers are spilt. With two and none
//     spilt 27 x (8192,128) floats along dim 1 take 1.15 instead of 1.11.
#include "table.cuh"

// A Stretch is the part [from, to) of a run of contiguous bytes.
struct Stretch {
    u8 *dst; // of the run's first byte, as src
    const u8 *src;
    u32 bytes; // of the whole run, which is what may be read
    u32 from, to;
};

// A Split of a stretch: `head` bytes, then `vectors` aligned stores of 16 bytes, then
// `tail` bytes. shift is the source's offset from 16-byte alignment where the
// destination is aligned. Head and tail are below 32.
struct Split {
    u32 head, vectors, tail, shift;
};

DEVICE Split split(const Stretch &s)
{
    const u64 src = address(s.src), dst = address(s.dst);
    Split p;
    p.shift = u32(src - dst) & 15;
    p.head = u32(0 - (dst + s.from)) & 15;
    u64 load_from = (src + s.from + p.head) & ~u64(15);
    if (p.shift && load_from < src) { // the first load would begin before the run
        p.head += 16;
        load_from += 16;
    }
    u32 bytes = s.to - s.from;
    p.head = smaller(p.head, bytes);
    p.vectors = (bytes - p.head) / 16;
    if (p.shift) { // vector i takes 32 bytes from load_from + 16 i on
        u64 end = src + s.bytes;
        u64 blocks = end > load_from ? (end - load_from) / 16 : 0;
        p.vectors = u32(smaller(u64(p.vectors), larger(blocks, u64(1)) - 1));
    }
    p.tail = bytes - p.head - p.vectors * 16;
    return p;
}

// copy_aligned copies vectors whose addresses are aligned on both sides. Each thread
// loads LOADS of them before it stores the first.
template <u32 LANES, u32 LOADS> DEVICE void copy_aligned(u8 *dst, const u8 *src, u32 vectors, u32 lane)
{
    ROLLED
    for (u32 i = lane; i < vectors; i += LANES * LOADS) {
        Vec16 v[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * LANES < vectors)
                v[k] = load16(src + u64(i + k * LANES) * 16);
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * LANES < vectors)
                store16(dst + u64(i + k * LANES) * 16, v[k]);
    }
}

// copy_shifted is copy_aligned for a source that is `shift` bytes past alignment. Vector i
// of the destination takes bytes of the aligned vectors i and i + 1 of the source: each
// thread loads one and gets the other from its neighbour. A warp takes LOADS times 32
// vectors in a row, so that only one thread needs one more.
template <u32 LANES, u32 LOADS> DEVICE void copy_shifted(u8 *dst, const u8 *src, u32 shift, u32 vectors, u32 lane)
{
    const u32 mine = lane % 32;
    src -= shift;
    ROLLED
    for (u32 base = lane / 32 * 32 * LOADS; base < vectors; base += LANES * LOADS) {
        Vec16 v[LOADS + 1] = {};
        UNROLL
        for (u32 k = 0; k <= LOADS; k++)
            if (base + k * 32 + mine <= vectors && (k < LOADS || mine == 0))
                v[k] = load16(src + u64(base + k * 32 + mine) * 16);
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            u32 i = base + k * 32 + mine;
            Vec16 high = next_lanes(mine == 0 ? v[k + 1] : v[k], src + u64(i) * 16 + 16, i < vectors);
            if (i < vectors)
                store16(dst + u64(i) * 16, extract(v[k], high, shift));
        }
    }
}

// copy_stretch copies a stretch with LANES threads, at least 32. The loads of head
// and tail go out before the vectors', their stores after: one wait instead of three.
template <u32 LANES, u32 LOADS> DEVICE void copy_stretch(const Stretch &s, u32 lane)
{
    const Split p = split(s);
    u8 *dst = s.dst + s.from;
    const u8 *src = s.src + s.from;
    const u32 tail_at = p.head + p.vectors * 16;
    u8 first = 0, last = 0;
    if (lane < p.head)
        load(first, src + lane);
    if (lane < p.tail)
        load(last, src + tail_at + lane);
    if (p.shift == 0)
        copy_aligned<LANES, LOADS>(dst + p.head, src + p.head, p.vectors, lane);
    else
        copy_shifted<LANES, LOADS / 2>(dst + p.head, src + p.head, p.shift, p.vectors, lane);
    if (lane < p.head)
        store(dst + lane, first);
    if (lane < p.tail)
        store(dst + tail_at + lane, last);
}

// cut returns where in a run the end of a tile falls that is `at` bytes into it: where
// the destination is aligned, so that both tiles agree and none starts with a head.
DEVICE u32 cut(const u8 *dst, u32 at, u32 bytes)
{
    if (at == 0 || at >= bytes)
        return smaller(at, bytes);
    u64 rounded = (address(dst) + at + 15 & ~u64(15)) - address(dst);
    return u32(smaller(rounded, u64(bytes)));
}

// A Tile is the numbers [lo, hi).
struct Tile {
    u32 lo, hi;
};

template <u32 LANES> DEVICE Tile my_tile(const u32 *table)
{
    u32 group = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    Tile t;
    t.lo = group * table[TILE_WORD];
    t.hi = smaller(t.lo + table[TILE_WORD], table[BYTES_WORD]);
    return t;
}

// below returns how much of segment s lies below a number, in bytes of s.
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

// copy_runs copies the part [from, to) of a strided segment a run at a time, for runs
// that are worth a warp's attention.
template <u32 LOADS> DEVICE void copy_runs(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const u32 run_bytes = table[s.place + RUN_WORD];
    ROLLED
    for (u32 run = divide(from, table + s.place + RUN_DIVISOR_WORD); run * run_bytes < to; run++) {
        u32 start = run * run_bytes;
        Offsets o = run_offsets(table, s.place, run);
        Stretch stretch = {s.dst + o.dst, s.src + o.src, run_bytes, 0, 0};
        stretch.from = cut(stretch.dst, larger(from, start) - start, run_bytes);
        stretch.to = cut(stretch.dst, smaller(to - start, run_bytes), run_bytes);
        if (stretch.from < stretch.to)
            copy_stretch<32, LOADS>(stretch, lane);
    }
}

// Runs are a strided segment's numbers, read once: loads of the table in a loop would wait
// for the stores before them.
struct Runs {
    u32 bytes, divisor[2]; // of a run
    i64 src_step, dst_step; // from run to run, if there is one axis
    bool one_axis;
};

DEVICE Runs read_runs(const u32 *table, u32 place)
{
    Runs r;
    r.bytes = table[place + RUN_WORD];
    r.divisor[0] = table[place + RUN_DIVISOR_WORD];
    r.divisor[1] = table[place + RUN_DIVISOR_WORD + 1];
    r.one_axis = (table[place + SHAPE_WORD] & 0xff) == 1;
    r.src_step = i64(word64(table, place + AXES_WORD + 3));
    r.dst_step = i64(word64(table, place + AXES_WORD + 5));
    return r;
}

// offsets_of returns where the byte of a number lies, from the segment's first one.
DEVICE Offsets offsets_of(const u32 *table, const Segment &s, const Runs &r, u32 number)
{
    const u32 run = divide(number, r.divisor), in_run = number - run * r.bytes;
    Offsets o = {i64(run) * r.src_step, i64(run) * r.dst_step};
    if (!r.one_axis)
        o = run_offsets(table, s.place, run);
    o.src += in_run;
    o.dst += in_run;
    return o;
}

// copy_units copies the part [from, to) of a strided segment a unit at a time, each
// thread for itself. Addresses, steps and runs are multiples of the unit.
template <typename Unit, u32 LOADS> DEVICE void copy_units(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const u32 size = sizeof(Unit);
    const Runs runs = read_runs(table, s.place);
    from = (from + size - 1) / size * size;
    to = (to + size - 1) / size * size;
    ROLLED
    for (u32 at = from + lane * size; at < to; at += 32 * size * LOADS) {
        Unit v[LOADS];
        u8 *dst[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            u32 number = at + k * 32 * size;
            if (number < to) {
                Offsets o = offsets_of(table, s, runs, number);
                load(v[k], s.src + o.src);
                dst[k] = s.dst + o.dst;
            }
        }
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (at + k * 32 * size < to)
                store(dst[k], v[k]);
    }
}

template <u32 LOADS> DEVICE void copy_strided(const u32 *table, const Segment &s, Tile t, u32 lane)
{
    const u32 from = below(s, t.lo), to = below(s, t.hi), shape = table[s.place + SHAPE_WORD];
    if (shape >> 16) {
        copy_runs<LOADS>(table, s, from, to, lane);
        return;
    }
    switch (shape >> 8 & 0xff) {
    case 0:
        return copy_units<u8, LOADS>(table, s, from, to, lane);
    case 1:
        return copy_units<u16, LOADS>(table, s, from, to, lane);
    case 2:
        return copy_units<u32, LOADS>(table, s, from, to, lane);
    case 3:
        return copy_units<u64, LOADS>(table, s, from, to, lane);
    default:
        return copy_units<Vec16, LOADS>(table, s, from, to, lane);
    }
}

// gather copies the tile of this thread's group.
template <u32 LANES, u32 LOADS, bool STRIDED> DEVICE void gather(const u32 *table)
{
    const Tile t = my_tile<LANES>(table);
    const u32 lane = threadIdx.x % LANES;
    if (t.lo >= table[BYTES_WORD])
        return;
    ROLLED
    for (u32 i = segment_at(table, t.lo); first_number(table, i) < t.hi; i++) {
        const Segment s = read_segment(table, i);
        if constexpr (STRIDED)
            if (s.strided) {
                copy_strided<LOADS>(table, s, t, lane);
                continue;
            }
        copy_plain<LANES, LOADS>(s, t, lane);
    }
}

KERNEL(512, 2) gather_block_4k(PARAMETER(Table4K) table)
{
    gather<512, 4, false>(table.word);
}

KERNEL(512, 2) gather_block_32k(PARAMETER(Table32K) table)
{
    gather<512, 4, false>(table.word);
}

KERNEL(256, 4) gather_warp_4k(PARAMETER(Table4K) table)
{
    gather<32, 4, false>(table.word);
}

KERNEL(256, 4) gather_warp_16k(PARAMETER(Table16K) table)
{
    gather<32, 4, false>(table.word);
}

KERNEL(256, 4) gather_warp_25k(PARAMETER(Table25K) table)
{
    gather<32, 4, false>(table.word);
}

KERNEL(256, 4) gather_warp_32k(PARAMETER(Table32K) table)
{
    gather<32, 4, false>(table.word);
}

KERNEL(256, 3) gather_strided_4k(PARAMETER(Table4K) table)
{
    gather<32, 4, true>(table.word);
}

KERNEL(256, 3) gather_strided_32k(PARAMETER(Table32K) table)
{
    gather<32, 4, true>(table.word);
}
