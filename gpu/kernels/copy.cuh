// copy.cuh: contiguous bytes copied by a group of threads, whatever the alignment of either
// side. Where they differ modulo 16 the loads stay aligned and the bytes are shifted together.
#pragma once

#include "common.cuh"

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

// copy_stretch copies a stretch with LANES threads, at least 32, LOADS loads of each at a time or
// SHIFTED of shifted ones. The loads of head
// and tail go out before the vectors', their stores after: one wait instead of three.
template <u32 LANES, u32 LOADS, u32 SHIFTED = LOADS / 2> DEVICE void copy_stretch(const Stretch &s, u32 lane)
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
        copy_shifted<LANES, SHIFTED>(dst + p.head, src + p.head, p.shift, p.vectors, lane);
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
