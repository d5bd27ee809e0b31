// table.cuh: how a launch's parameters say what to move. Written by
// gpu/internal/launch/table.go, whose constants these are.
//
// A launch moves `bytes` bytes, numbered from 0 in the order of the table: first
// those of segment 0, then those of segment 1, ... The grid cuts these numbers, not
// the segments, into tiles of `tile` bytes each, so every group of threads has the
// same work however uneven the segments are:
//
//     segment     0            1       2                        3
//     number      0........99 100..159 160...................999 1000
//     tile of 512 |------- 0 --------------|-------- 1 ----------|
//
//     word 0   segments
//          1   bytes, below 2^31
//          2   tile in bytes, a power of two from 16 on
//          3   bits 48..63 of every source address
//          4   a record of three words for each segment:
//              first number | source address bits 0..31 | bits 32..47, place << 16
//        ...
//     at the end, growing downwards, the places that records point at (in words):
//          0   destination address minus first number, 64 bits, low word first
//     and, if the record's place has the top bit set, also
//          2   bytes of a run, divisor (2 words), axes | log2(unit) << 8 | whole runs << 16
//          6   an axis in 7 words, innermost first: turns, divisor (2), source step in
//              bytes (2), destination step (2)
//
// Segments of one output that lie one after the other share a place, so a plain
// segment costs 12 bytes. One whose bytes form runs repeated along axes ("strided")
// has a place of its own.
#pragma once

#include "common.cuh"

enum {
    SEGMENTS_WORD = 0,
    BYTES_WORD = 1,
    TILE_WORD = 2,
    HIGH_WORD = 3,
    RECORDS_WORD = 4,
    RECORD_WORDS = 3,

    STRIDED_BIT = 0x8000,
    RUN_WORD = 2,
    RUN_DIVISOR_WORD = 3,
    SHAPE_WORD = 5,
    AXES_WORD = 6,
    AXIS_WORDS = 7,
};

// The sizes of kernel parameters: from what every launch may have to what drivers from CUDA
// 12.1 on take. Before a kernel starts the device fetches all of them, whether they are used
// or not: 0.08 us a KiB on an H200.
struct Table4K {
    u32 word[4096 / 4];
};

struct Table16K {
    u32 word[16384 / 4];
};

struct Table25K {
    u32 word[25600 / 4];
};

struct Table32K {
    u32 word[32764 / 4];
};

DEVICE u64 word64(const u32 *table, u32 at)
{
    return u64(table[at + 1]) << 32 | table[at];
}

// first_number returns the number of a segment's first byte; that of the segment
// after the last is the number of bytes.
DEVICE u32 first_number(const u32 *table, u32 segment)
{
    if (segment == table[SEGMENTS_WORD])
        return table[BYTES_WORD];
    return table[RECORDS_WORD + segment * RECORD_WORDS];
}

// segment_at returns the segment that has the byte of a number. Reading a word of the
// table that no thread near has read costs as much as a trip to memory, and a search by
// halves makes eleven of them; where segments are alike, the guess is right at once.
DEVICE u32 segment_at(const u32 *table, u32 number)
{
    const u32 segments = table[SEGMENTS_WORD];
    u32 low = smaller(u32(float(number) * (float(segments) / float(table[BYTES_WORD]))), segments - 1);
    u32 high = low + 1; // the answer is in [low, high) at the end
    ROLLED
    for (u32 step = 1; low > 0 && first_number(table, low) > number; step *= 2) {
        high = low;
        low = low > step ? low - step : 0;
    }
    ROLLED
    for (u32 step = 1; high < segments && first_number(table, high) <= number; step *= 2) {
        low = high;
        high = smaller(high + step, segments);
    }
    ROLLED
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first_number(table, middle) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// A Segment is one record, read.
struct Segment {
    const u8 *src;
    u8 *dst;
    u32 first; // number of its first byte
    u32 bytes; // all its runs together
    u32 place;
    bool strided;
};

DEVICE Segment read_segment(const u32 *table, u32 segment)
{
    const u32 *record = table + RECORDS_WORD + segment * RECORD_WORDS;
    u32 high = record[2] & 0xffff | table[HIGH_WORD] << 16;
    Segment s;
    s.first = record[0];
    s.bytes = first_number(table, segment + 1) - s.first;
    s.src = reinterpret_cast<const u8 *>(u64(high) << 32 | record[1]);
    s.strided = record[2] >> 16 & STRIDED_BIT;
    s.place = record[2] >> 16 & ~STRIDED_BIT;
    s.dst = reinterpret_cast<u8 *>(word64(table, s.place) + s.first);
    return s;
}

// divide returns n / d for n below 2^31, d given as the two words of a divisor: a
// factor and a shift, after Granlund and Montgomery, "Division by invariant integers
// using multiplication" (PLDI 1994), figure 4.1.
DEVICE u32 divide(u32 n, const u32 *divisor)
{
    return (multiply_high(n, divisor[0]) + n) >> divisor[1];
}

// Offsets are where a run lies, in bytes from the segment's first run.
struct Offsets {
    i64 src, dst;
};

// run_offsets returns where run number `run` of a strided segment lies: its turns
// are the digits of the run number, innermost axis last.
DEVICE Offsets run_offsets(const u32 *table, u32 place, u32 run)
{
    Offsets o = {0, 0};
    u32 axes = table[place + SHAPE_WORD] & 0xff;
    ROLLED
    for (u32 i = 0; i < axes; i++) {
        const u32 *axis = table + place + AXES_WORD + i * AXIS_WORDS;
        u32 next = divide(run, axis + 1);
        i64 turn = run - next * axis[0];
        o.src += turn * i64(word64(axis, 3));
        o.dst += turn * i64(word64(axis, 5));
        run = next;
    }
    return o;
}
