// cast.cuh: copies segments of floats to where the outputs want them and converts them on the
// way, all of a device's batches in one launch.
//
// Launched by gpu.Cast, a warp a tile. Every pair of types has kernels of its own (cast.cu), in a
// module of its own that the driver compiles when it is first asked for. The table is that of
// table.cuh, but numbers and counts elements instead of bytes: only addresses and steps are in
// bytes, and a place has the destination's address minus the bytes of as many elements as its
// first number. The upper half of word 3 is `special`, see below.
//
// Addresses and steps are multiples of the element that lies there; nothing else is asked of
// them. A thread takes a vector at a time, 16 bytes of the wider type, if source and
// destination come to the boundary of one at the same element, else an element.
//
// The floor is cudaMemcpy of half the bytes that are read and written;
// docs/adr/0016-casts-while-copying.md says how far from it the kernels are, and why no kernel
// takes several types.
#pragma once

#include "floats.cuh"
#include "table.cuh"

// ---- elements in a row ----

// A Vector is N elements side by side.
template <typename Bits, u32 N> struct alignas(N * sizeof(Bits)) Vector {
    Bits element[N];
};

// load_vector and store_vector name the memory as global, which the compiler does not know.
template <typename V> DEVICE void load_vector(V &v, const u8 *from)
{
#ifdef __CUDACC__
    if constexpr (sizeof v == 16) {
        const Vec16 raw = load16(from);
        memcpy(&v, &raw, sizeof v);
    } else if constexpr (sizeof v == 8) {
        u64 raw;
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(raw) : "l"(from));
        memcpy(&v, &raw, sizeof v);
    } else if constexpr (sizeof v == 4) {
        u32 raw;
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(raw) : "l"(from));
        memcpy(&v, &raw, sizeof v);
    } else if constexpr (sizeof v == 2) {
        u16 raw;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(raw) : "l"(from));
        memcpy(&v, &raw, sizeof v);
    } else {
        u32 raw;
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(raw) : "l"(from));
        memcpy(&v, &raw, sizeof v);
    }
#else
    v = host_load<V>(from);
#endif
}

template <typename V> DEVICE void store_vector(u8 *to, const V &v)
{
#ifdef __CUDACC__
    if constexpr (sizeof v == 16) {
        Vec16 raw;
        memcpy(&raw, &v, sizeof v);
        store16(to, raw);
    } else if constexpr (sizeof v == 8) {
        u64 raw;
        memcpy(&raw, &v, sizeof v);
        asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(raw) : "memory");
    } else if constexpr (sizeof v == 4) {
        u32 raw;
        memcpy(&raw, &v, sizeof v);
        asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(raw) : "memory");
    } else if constexpr (sizeof v == 2) {
        u16 raw;
        memcpy(&raw, &v, sizeof v);
        asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(raw) : "memory");
    } else {
        u8 raw;
        memcpy(&raw, &v, sizeof v);
        asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(u32(raw)) : "memory");
    }
#else
    host_store<V>(to, v);
#endif
}

// Sizes are what a conversion moves at a time: vectors that have 16 bytes on the wider side, and
// so many of them as are loaded before the first is stored.
template <typename S, typename T> struct Sizes {
    enum {
        FROM = sizeof(typename S::Bits),
        TO = sizeof(typename T::Bits),
        ELEMENTS = 16 / (FROM < TO ? TO : FROM),
        LOADS = ELEMENTS == 16 ? 2 : 4,
    };
};

// cast_vectors converts vectors that are aligned on both sides.
template <typename S, typename T> DEVICE void cast_vectors(u8 *dst, const u8 *src, u32 vectors, u32 special, u32 lane)
{
    typedef Sizes<S, T> Z;
    const u32 N = Z::ELEMENTS, LOADS = Z::LOADS;
    ROLLED
    for (u32 i = lane; i < vectors; i += 32 * LOADS) {
        Vector<typename S::Bits, N> v[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * 32 < vectors)
                load_vector(v[k], src + u64(i + k * 32) * (N * Z::FROM));
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            if (i + k * 32 >= vectors)
                break;
            Vector<typename T::Bits, N> converted;
            UNROLL
            for (u32 e = 0; e < N; e++)
                converted.element[e] = Conversion<S, T>::of(v[k].element[e], special);
            store_vector(dst + u64(i + k * 32) * (N * Z::TO), converted);
        }
    }
}

// A Part is the elements [from, to) of a row, or of a strided segment.
struct Part {
    const u8 *src; // of the first element of all, as dst
    u8 *dst;
    u32 elements, from, to;
    u32 place; // that says where the elements of a strided segment lie; 0 for a row
};

// offsets_of returns where an element lies, from the first one.
template <typename S, typename T> DEVICE Offsets offsets_of(const u32 *table, const Part &p, u32 element)
{
    Offsets o = {0, 0};
    if (p.place) {
        const u32 run = divide(element, table + p.place + RUN_DIVISOR_WORD);
        o = run_offsets(table, p.place, run);
        element -= run * table[p.place + RUN_WORD];
    }
    o.src += u64(element) * Sizes<S, T>::FROM;
    o.dst += u64(element) * Sizes<S, T>::TO;
    return o;
}

// cast_elements converts all of a part but `skipped` elements from `from` on, one by one.
template <typename S, typename T>
DEVICE void cast_elements(const u32 *table, const Part &p, u32 from, u32 skipped, u32 special, u32 lane)
{
    const u32 LOADS = 4;
    ROLLED
    for (u32 i = p.from + lane; i < p.to - skipped; i += 32 * LOADS) {
        typename S::Bits v[LOADS];
        u8 *dst[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            const u32 at = i + k * 32;
            if (at < p.to - skipped) {
                const Offsets o = offsets_of<S, T>(table, p, at < from ? at : at + skipped);
                load_vector(v[k], p.src + o.src);
                dst[k] = p.dst + o.dst;
            }
        }
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * 32 < p.to - skipped)
                store_vector(dst[k], Conversion<S, T>::of(v[k], special));
    }
}

// cut_row returns where in a row the end of a tile falls that is `at` elements into it: where the
// destination is at a multiple of 16 elements, so that both tiles agree and none begins amid a
// vector.
template <typename T> DEVICE u32 cut_row(const u8 *dst, u32 at, u32 elements)
{
    const u32 first = u32(address(dst) / sizeof(typename T::Bits)) % 16;
    return at == 0 ? 0 : smaller((first + at + 15) / 16 * 16 - first, elements);
}

// cast_part converts a part: what it has of vectors, then the rest.
template <typename S, typename T> DEVICE void cast_part(const u32 *table, Part p, u32 special, u32 lane)
{
    typedef Sizes<S, T> Z;
    const u32 N = Z::ELEMENTS;
    u32 from = 0, vectors = 0;
    if (!p.place) {
        p.from = cut_row<T>(p.dst, p.from, p.elements);
        p.to = cut_row<T>(p.dst, p.to, p.elements);
        const u32 first = u32(address(p.dst) / Z::TO) % N;
        from = (first + p.from + N - 1) / N * N - first;
        if (first == u32(address(p.src) / Z::FROM) % N && from < p.to)
            vectors = (p.to - from) / N;
        cast_vectors<S, T>(p.dst + u64(from) * Z::TO, p.src + u64(from) * Z::FROM, vectors, special, lane);
    }
    cast_elements<S, T>(table, p, from, vectors * N, special, lane);
}

// ---- segments ----

// elements_below returns how many of a segment's elements have lower numbers.
DEVICE u32 elements_below(const Segment &s, u32 number)
{
    return number <= s.first ? 0 : smaller(number - s.first, s.bytes);
}

template <typename T> DEVICE u8 *destination(const u32 *table, const Segment &s)
{
    return reinterpret_cast<u8 *>(word64(table, s.place) + u64(s.first) * sizeof(typename T::Bits));
}

const u32 NONE = ~0u;

// cast converts the tile of this thread's warp.
template <typename S, typename T> DEVICE void cast(const u32 *table)
{
    const u32 lo = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * table[TILE_WORD], lane = threadIdx.x % 32;
    const u32 all = table[BYTES_WORD], special = table[HIGH_WORD] >> 16;
    if (lo >= all)
        return;
    const u32 hi = smaller(lo + table[TILE_WORD], all);
    ROLLED
    for (u32 i = segment_at(table, lo), run = NONE; first_number(table, i) < hi;) {
        const Segment s = read_segment(table, i);
        const u32 from = elements_below(s, lo), to = elements_below(s, hi);
        Part p = {s.src, destination<T>(table, s), s.bytes, from, to, s.strided ? s.place : 0};
        if (s.strided && table[s.place + SHAPE_WORD] >> 16) { // a run at a time
            p.elements = table[s.place + RUN_WORD];
            run = run == NONE ? divide(from, table + s.place + RUN_DIVISOR_WORD) : run;
            const u32 start = run * p.elements;
            const Offsets o = run_offsets(table, s.place, run);
            p = Part{s.src + o.src, p.dst + o.dst, p.elements, larger(from, start) - start, smaller(to - start, p.elements), 0};
            run = start + p.elements < to ? run + 1 : NONE;
        }
        cast_part<S, T>(table, p, special, lane);
        i += run == NONE;
    }
}

#define CAST(S, T)                                                                                                     \
    KERNEL(256, 4) cast_##S##_##T##_4k(PARAMETER(Table4K) table)                                                       \
    {                                                                                                                  \
        cast<S, T>(table.word);                                                                                        \
    }                                                                                                                  \
    KERNEL(256, 4) cast_##S##_##T##_32k(PARAMETER(Table32K) table)                                                     \
    {                                                                                                                  \
        cast<S, T>(table.word);                                                                                        \
    }
