// table.cuh: how a launch's parameters say what to move. Written by
// gpu/internal/launch/table.go, whose constants these are.
//
// A launch moves `bytes` bytes, numbered from 0 in the order of the table: first
// those of segment 0, then those of segment 1, ... The grid cuts these numbers, not
// the segments, into tiles of `tile` numbers each, so every group of threads has the
// same work however uneven the segments are:
//
//     segment     0            1       2                        3
//     number      0........99 100..159 160...................999 1000
//     tile of 512 |------- 0 --------------|-------- 1 ----------|
//
//     word 0   segments
//          1   bytes, or what else is numbered, below 2^31
//          2   tile in numbers, a power of two: from 16 on, or 1 for pieces
//          3   bits 48..63 of every source address
//          4   a record of three words for each segment:
//              first number | source address bits 0..31 | bits 32..47, place << 16
//        ...
//     at the end, growing downwards, the places that records point at (in words):
//          0   destination address minus first number, 64 bits, low word first
//     or, if the record's place has the top bit set,
//          0   destination address, 64 bits, of the first run
//          2   bytes of a run
//          3   divisor by word 6 (2 words)
//          5   axes | log2(unit) << 8 | how << 16
//          6   numbers of a run
//          7   an axis in 7 words, innermost first: turns, divisor (2), source step in
//              bytes (2), destination step (2)
//
// Segments of one output that lie one after the other share a place, so a plain
// segment costs 12 bytes. One whose bytes form runs repeated along axes ("strided")
// has a place of its own.
//
// Where all segments are strided and their runs alike, numbers count larger things than bytes:
//
//     pieces   of runs of 1 KiB or more; each but the last has `how` times 16 bytes
//     vectors  of 16 bytes, of shorter runs that are aligned to them
//     slots    16 aligned bytes of the destination each. A run that is not aligned fills its first
//              and its last one in part, and has one fewer than the worst case where that is enough.
//     units    of 4 or 8 bytes of runs that are shorter still
//
// The upper half of word 3 is then, but for pieces, 1 if warps take a tile of each segment in turns.
//
// Narrow tables have plain segments only, in 8 bytes each:
//
//     word 3   log2 of what first numbers are multiples of | log2 for sources << 8 | bits
//              of a place << 16
//          4   lowest source address, 64 bits
//          6   word of place 0
//          8   a record of two words for each segment: source address minus the lowest, and
//              first number << bits | place, both divided by what they are multiples of;
//              place i is 2 i words below place 0
#pragma once

#include "common.cuh"

enum {
    SEGMENTS_WORD = 0,
    BYTES_WORD = 1,
    TILE_WORD = 2,

    HIGH_WORD = 3,
    RECORDS_WORD = 4,
    RECORD_WORDS = 3,

    BITS_WORD = 3,
    LOW_WORD = 4,
    FIRST_PLACE_WORD = 6,
    NARROW_RECORDS_WORD = 8,
    NARROW_RECORD_WORDS = 2,

    STRIDED_BIT = 0x8000,
    RUN_WORD = 2,
    RUN_DIVISOR_WORD = 3,
    SHAPE_WORD = 5,
    PER_RUN_WORD = 6,
    AXES_WORD = 7,
    AXIS_WORDS = 7,
};

// The sizes of kernel parameters: from what every launch may have to what drivers from CUDA
// 12.1 on take. Before a kernel starts the device fetches all of them, whether they are used
// or not: 0.08 us a KiB on an H200.
struct Table4K {
    u32 word[4096 / 4];
};

struct Table9K {
    u32 word[9216 / 4];
};

struct Table18K {
    u32 word[18432 / 4];
};

struct Table32K {
    u32 word[32764 / 4];
};

DEVICE u64 word64(const u32 *table, u32 at)
{
    return u64(table[at + 1]) << 32 | table[at];
}

// A Segment is one record, read.
struct Segment {
    const u8 *src;
    u8 *dst;
    u32 first; // its first number
    u32 bytes; // all its runs together, or of what else numbers are
    u32 place;
    bool strided;
};

// Records are how a table's records are written.
struct Records {
    DEVICE u32 first(const u32 *table, u32 segment)
    {
        return table[RECORDS_WORD + segment * RECORD_WORDS];
    }

    // read leaves `numbers` out.
    DEVICE Segment read(const u32 *table, u32 segment)
    {
        const u32 *record = table + RECORDS_WORD + segment * RECORD_WORDS;
        const u32 high = record[2] & 0xffff | table[HIGH_WORD] << 16;
        Segment s;
        s.first = record[0];
        s.src = reinterpret_cast<const u8 *>(u64(high) << 32 | record[1]);
        s.strided = record[2] >> 16 & STRIDED_BIT;
        s.place = record[2] >> 16 & ~STRIDED_BIT;
        return s;
    }
};

struct NarrowRecords {
    DEVICE u32 first(const u32 *table, u32 segment)
    {
        const u32 bits = table[BITS_WORD];
        return table[NARROW_RECORDS_WORD + segment * NARROW_RECORD_WORDS + 1] >> (bits >> 16) << (bits & 0xff);
    }

    DEVICE Segment read(const u32 *table, u32 segment)
    {
        const u32 *record = table + NARROW_RECORDS_WORD + segment * NARROW_RECORD_WORDS;
        const u32 bits = table[BITS_WORD];
        Segment s;
        s.first = record[1] >> (bits >> 16) << (bits & 0xff);
        s.src = reinterpret_cast<const u8 *>(word64(table, LOW_WORD) + (u64(record[0]) << (bits >> 8 & 0xff)));
        s.strided = false;
        s.place = table[FIRST_PLACE_WORD] - 2 * (record[1] & (1u << (bits >> 16)) - 1);
        return s;
    }
};

// first_number returns a segment's first number; that of the segment after the last is
// the number of numbers.
template <typename R = Records> DEVICE u32 first_number(const u32 *table, u32 segment)
{
    return segment == table[SEGMENTS_WORD] ? table[BYTES_WORD] : R::first(table, segment);
}

// segment_at returns the segment that has a number. Reading a word of the
// table that no thread near has read costs as much as a trip to memory, and a search by
// halves makes eleven of them; where segments are alike, the guess is right at once.
template <typename R = Records> DEVICE u32 segment_at(const u32 *table, u32 number)
{
    const u32 segments = table[SEGMENTS_WORD];
    u32 low = smaller(u32(float(number) * (float(segments) / float(table[BYTES_WORD]))), segments - 1);
    u32 high = low + 1; // the answer is in [low, high) at the end
    ROLLED
    for (u32 step = 1; low > 0 && first_number<R>(table, low) > number; step *= 2) {
        high = low;
        low = low > step ? low - step : 0;
    }
    ROLLED
    for (u32 step = 1; high < segments && first_number<R>(table, high) <= number; step *= 2) {
        low = high;
        high = smaller(high + step, segments);
    }
    ROLLED
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first_number<R>(table, middle) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <typename R = Records> DEVICE Segment read_segment(const u32 *table, u32 segment)
{
    Segment s = R::read(table, segment);
    s.bytes = first_number<R>(table, segment + 1) - s.first;
    s.dst = reinterpret_cast<u8 *>(word64(table, s.place) + (s.strided ? 0 : s.first));
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
