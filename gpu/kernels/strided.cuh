// strided.cuh: segments whose bytes form runs, repeated along axes.
//
// Where all runs of a launch are alike, each kind has its own kernel, which needs fewer
// registers and cuts the work where runs end:
//
//   - pieces: a warp copies a piece of a run, one round of loads.
//   - vectors: a thread copies aligned units of 16 bytes.
//   - slots: a thread fills 16 aligned bytes of the destination, or those of them that are its
//     run's, from the 32 of the source that have them.
//   - units: a thread copies units of 4 or 8 bytes, of runs that are shorter still.
//
// Launches that mix runs and contiguous segments number bytes and have both kinds in one kernel.
#pragma once

#include "copy.cuh"
#include "table.cuh"

// Runs are a strided segment's words, read once: loads of the table in a loop would wait
// for the stores before them.
struct Runs {
    u32 bytes; // of a run
    u32 numbers, divisor[2]; // of a run
    u32 turns; // of the innermost axis
    i64 src_step, dst_step; // from run to run, if there is one axis
    bool one_axis;
};

DEVICE Runs read_runs(const u32 *table, u32 place)
{
    Runs r;
    r.bytes = table[place + RUN_WORD];
    r.numbers = table[place + PER_RUN_WORD];
    r.divisor[0] = table[place + RUN_DIVISOR_WORD];
    r.divisor[1] = table[place + RUN_DIVISOR_WORD + 1];
    r.one_axis = (table[place + SHAPE_WORD] & 0xff) == 1;
    r.turns = table[place + AXES_WORD];
    r.src_step = i64(word64(table, place + AXES_WORD + 3));
    r.dst_step = i64(word64(table, place + AXES_WORD + 5));
    return r;
}

// A Spot is a number of a strided segment: which of its run, and where the run lies, in bytes
// from the segment's first one.
struct Spot {
    u32 in_run;
    Offsets run;
};

DEVICE Spot spot_of(const u32 *table, const Segment &s, const Runs &r, u32 number)
{
    const u32 run = divide(number, r.divisor);
    Spot p;
    p.in_run = number - run * r.numbers;
    p.run = {i64(run) * r.src_step, i64(run) * r.dst_step};
    if (!r.one_axis)
        p.run = run_offsets(table, s.place, run);
    return p;
}

// copy_piece copies a piece of a run by a warp, with LOADS loads of a thread at a time.
template <u32 LOADS> DEVICE void copy_piece(const u32 *table, const Segment &s, u32 number, u32 lane)
{
    const Runs runs = read_runs(table, s.place);
    const Spot p = spot_of(table, s, runs, number);
    const u32 piece = (table[s.place + SHAPE_WORD] >> 16) * 16, at = p.in_run * piece;
    Stretch stretch = {s.dst + p.run.dst, s.src + p.run.src, runs.bytes, 0, 0};
    stretch.from = cut(stretch.dst, at, runs.bytes);
    stretch.to = cut(stretch.dst, at + piece, runs.bytes);
    if (stretch.from < stretch.to)
        copy_stretch<32, LOADS, LOADS>(stretch, lane);
}

// copy_units copies the numbers [from, to) of a strided segment a unit at a time, each
// thread for itself. Addresses, steps and runs are multiples of the unit. A number is
// NUMBER bytes, and `from` and `to` are at units.
template <typename Unit, u32 NUMBER, u32 LOADS> DEVICE void copy_units(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const u32 size = sizeof(Unit) / NUMBER; // in numbers
    const Runs runs = read_runs(table, s.place);
    ROLLED
    for (u32 at = from + lane * size; at < to; at += 32 * size * LOADS) {
        Unit v[LOADS];
        u8 *dst[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            const u32 number = at + k * 32 * size;
            if (number < to) {
                const Spot p = spot_of(table, s, runs, number);
                load(v[k], s.src + p.run.src + p.in_run * NUMBER);
                dst[k] = s.dst + p.run.dst + p.in_run * NUMBER;
            }
        }
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (at + k * 32 * size < to)
                store(dst[k], v[k]);
    }
}

// A Readable is the bytes [from, to) that may be read.
struct Readable {
    u64 from, to; // addresses
};

// readable returns what may be read for a run: the run or, where runs lie one after the other,
// all of them, so that only the segment's ends need care.
DEVICE Readable readable(const Segment &s, const Runs &runs, Offsets run)
{
    if (runs.one_axis && runs.src_step == runs.bytes)
        return {address(s.src), address(s.src) + u64(runs.turns) * runs.bytes};
    return {address(s.src + run.src), address(s.src + run.src) + runs.bytes};
}

// A Window is the aligned 32 bytes around 16 that are not.
struct Window {
    Vec16 low, high;
    u32 at; // of the 16, in it
};

// load_window loads the 16 bytes at an address. Those that may not be read have any value.
DEVICE Window load_window(u64 from, Readable in)
{
    Window w = {};
    w.at = u32(from) & 15;
    const u64 aligned = from - w.at;
    if (aligned >= in.from && aligned + (w.at ? 32 : 16) <= in.to) {
        w.low = load16(reinterpret_cast<const u8 *>(aligned));
        if (w.at)
            w.high = load16(reinterpret_cast<const u8 *>(aligned + 16));
        return w;
    }
    u32 word[4] = {};
    w.at = 0;
    UNROLL
    for (u32 i = 0; i < 16; i++)
        if (from + i >= in.from && from + i < in.to) {
            u8 v;
            load(v, reinterpret_cast<const u8 *>(from + i));
            word[i / 4] |= u32(v) << i % 4 * 8;
        }
    w.low = Vec16{word[0], word[1], word[2], word[3]};
    return w;
}

// A Slot is the bytes [from, to) of 16 aligned ones of the destination.
struct Slot {
    u8 *dst; // of the 16, which may begin before the run
    u32 from, to; // equal if the run has no such slot
    Window window;
};

DEVICE Slot load_slot(const u32 *table, const Segment &s, const Runs &runs, u32 number)
{
    const Spot p = spot_of(table, s, runs, number);
    u8 *const run = s.dst + p.run.dst;
    const int begin = int(p.in_run * 16) - int(address(run) & 15), left = int(runs.bytes) - begin;
    Slot slot;
    slot.dst = run + begin;
    slot.from = u32(larger(-begin, 0));
    slot.to = u32(larger(smaller(left, 16), int(slot.from)));
    if (slot.from < slot.to)
        slot.window = load_window(address(s.src + p.run.src) + i64(begin), readable(s, runs, p.run));
    return slot;
}

// store_slot stores a slot's bytes, words of four where all of them are its.
DEVICE void store_slot(const Slot &s)
{
    if (s.from == s.to)
        return;
    const Vec16 v = extract(s.window.low, s.window.high, s.window.at);
    if (s.to - s.from == 16) {
        store16(s.dst, v);
        return;
    }
    const u32 word[4] = {v.x, v.y, v.z, v.w};
    UNROLL
    for (u32 i = 0; i < 4; i++) {
        if (s.from <= i * 4 && i * 4 + 4 <= s.to) {
            store(s.dst + i * 4, word[i]);
        } else if (s.from < i * 4 + 4 && i * 4 < s.to) {
            UNROLL
            for (u32 k = i * 4; k < i * 4 + 4; k++)
                if (k >= s.from && k < s.to)
                    store(s.dst + k, u8(word[i] >> k % 4 * 8));
        }
    }
}

// copy_slots copies the slots [from, to) of a strided segment.
template <u32 LOADS> DEVICE void copy_slots(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const Runs runs = read_runs(table, s.place);
    ROLLED
    for (u32 at = from + lane; at < to; at += 32 * LOADS) {
        Slot slots[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            slots[k].from = slots[k].to = 0;
            if (at + k * 32 < to)
                slots[k] = load_slot(table, s, runs, at + k * 32);
        }
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            store_slot(slots[k]);
    }
}

// copy_tiny copies the units [from, to) of a strided segment.
template <u32 LOADS> DEVICE void copy_tiny(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    if ((table[s.place + SHAPE_WORD] >> 8) == 3)
        copy_units<u64, 8, LOADS>(table, s, from, to, lane);
    else
        copy_units<u32, 4, LOADS>(table, s, from, to, lane);
}

// copy_runs copies the bytes [from, to) of a strided segment a run at a time, for runs
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

// copy_bytes copies the bytes [from, to) of a strided segment, those of the units that begin there.
template <typename Unit, u32 LOADS> DEVICE void copy_bytes(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const u32 size = sizeof(Unit);
    copy_units<Unit, 1, LOADS>(table, s, (from + size - 1) / size * size, (to + size - 1) / size * size, lane);
}

template <u32 LOADS> DEVICE void copy_strided(const u32 *table, const Segment &s, u32 from, u32 to, u32 lane)
{
    const u32 shape = table[s.place + SHAPE_WORD];
    if (shape >> 16) {
        copy_runs<LOADS>(table, s, from, to, lane);
        return;
    }
    switch (shape >> 8 & 0xff) {
    case 0:
        return copy_bytes<u8, LOADS>(table, s, from, to, lane);
    case 1:
        return copy_bytes<u16, LOADS>(table, s, from, to, lane);
    case 2:
        return copy_bytes<u32, LOADS>(table, s, from, to, lane);
    case 3:
        return copy_bytes<u64, LOADS>(table, s, from, to, lane);
    default:
        return copy_bytes<Vec16, LOADS>(table, s, from, to, lane);
    }
}
