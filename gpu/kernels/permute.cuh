// permute.cuh: what permute.cu moves, by threads that own a vector of every unit, or by warps that
// own a slice.
#pragma once
#include "common.cuh"

// fetch and put move one aligned vector of memory that other threads of the launch
// write before or after: loads that may be served from a cache of constants (.nc), as in
// common.cuh, are not for them.
#ifdef __CUDACC__

DEVICE void fetch(Vec16 &v, const u8 *from)
{
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
}

DEVICE void put(u8 *to, const Vec16 &v)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

template <typename V> DEVICE void fetch(V &v, const u8 *from)
{
    v = *reinterpret_cast<const volatile V *>(from);
}

template <typename V> DEVICE void put(u8 *to, const V &v)
{
    *reinterpret_cast<volatile V *>(to) = v;
}

#else

template <typename V> DEVICE void fetch(V &v, const u8 *from)
{
    v = host_load<V>(from);
}

template <typename V> DEVICE void put(u8 *to, const V &v)
{
    host_store<V>(to, v);
}

#endif

// A Slice is up to 512 * ROWS - 15 bytes of a unit, wherever they lie: the aligned vectors that
// hold them, of which thread i of a warp has numbers i, i + 32 and so on. All threads of
// a warp move a slice together.
#ifdef __CUDACC__

template <u32 ROWS> struct Slice {
    Vec16 row[ROWS];
    u32 at; // where in the first vector the slice begins
};

// fetch reads whole vectors: up to 15 bytes before and behind the slice, which are no one's to
// use but lie in 16 bytes of memory of ours.
template <u32 ROWS> DEVICE void fetch(Slice<ROWS> &s, const u8 *from, u32 bytes)
{
    const u32 lane = threadIdx.x & 31;
    s.at = address(from) & 15;
    from -= s.at;
    UNROLL
    for (u32 r = 0; r < ROWS; r++)
        if ((r * 32 + lane) * 16 < s.at + bytes)
            fetch(s.row[r], from + (r * 32 + lane) * 16);
}

// shuffle returns a vector of another thread of the warp.
DEVICE Vec16 shuffle(const Vec16 &v, u32 lane)
{
    return Vec16{__shfl_sync(~0u, v.x, lane), __shfl_sync(~0u, v.y, lane), __shfl_sync(~0u, v.z, lane), __shfl_sync(~0u, v.w, lane)};
}

// shifted returns row r of vectors that begin `at` bytes into theirs, `to` bytes into new ones.
template <u32 ROWS> DEVICE Vec16 shifted(const Slice<ROWS> &s, u32 r, u32 to)
{
    const u32 lane = threadIdx.x & 31;
    if (s.at == to)
        return s.row[r];
    if (s.at > to) {
        Vec16 next = shuffle(s.row[r], lane + 1 & 31);
        if (r + 1 < ROWS) {
            const Vec16 over = shuffle(s.row[r + 1 < ROWS ? r + 1 : r], 0);
            next = lane == 31 ? over : next;
        }
        return extract(s.row[r], next, s.at - to);
    }
    Vec16 before = shuffle(s.row[r], lane + 31 & 31);
    if (r > 0) {
        const Vec16 over = shuffle(s.row[r > 0 ? r - 1 : r], 31);
        before = lane == 0 ? over : before;
    }
    return extract(before, s.row[r], 16 + s.at - to);
}

// put_bytes stores bytes [lo, hi) of the vector that a thread has, in one access of
// the warp: more of them, which L2 takes one by one, are what takes long.
DEVICE void put_bytes(u8 *to, const Vec16 &v, u32 owner, u32 lo, u32 hi)
{
    const u32 lane = threadIdx.x & 31;
    const Vec16 w = shuffle(v, owner);
    const u32 half = lane & 8 ? (lane & 4 ? w.w : w.z) : (lane & 4 ? w.y : w.x);
    if (lane >= lo && lane < hi)
        *reinterpret_cast<volatile u8 *>(to + lane) = u8(half >> lane % 4 * 8);
}

template <u32 ROWS> DEVICE void put(u8 *to, const Slice<ROWS> &s, u32 bytes)
{
    const u32 lane = threadIdx.x & 31, at = address(to) & 15, end = at + bytes;
    to -= at;
    __syncwarp(); // all have read what is written over
    UNROLL
    for (u32 r = 0; r < ROWS; r++) {
        if (r * 512 >= end)
            break;
        const Vec16 v = shifted(s, r, at);
        const u32 i = r * 32 + lane;
        const bool whole = (i > 0 || at == 0) && i * 16 + 16 <= end;
        if (whole)
            put(to + i * 16, v);
        if (r == 0 && at > 0)
            put_bytes(to, v, 0, at, smaller(end, 16u));
        if (end / 512 == r && end % 16 > 0 && (end >= 16 || at == 0))
            put_bytes(to + end / 16 * 16, v, end / 16 % 32, 0, end % 16);
    }
}

#else

// A host runs threads one by one: the first of a warp moves all bytes of a slice.
template <u32 ROWS> struct Slice {
    std::vector<u8> bytes;
};

template <u32 ROWS> void fetch(Slice<ROWS> &s, const u8 *from, u32 bytes)
{
    if (threadIdx.x % 32)
        return;
    s.bytes.resize(bytes);
    for (u32 i = 0; i < bytes; i++)
        s.bytes[i] = host_load<u8>(from + i);
}

template <u32 ROWS> void put(u8 *to, const Slice<ROWS> &s, u32)
{
    for (size_t i = 0; i < s.bytes.size(); i++)
        host_store<u8>(to + i, s.bytes[i]);
}

#endif

// fetch and put of a vector, of whose size there is no doubt.
template <typename V> DEVICE void fetch(V &v, const u8 *from, u32)
{
    fetch(v, from);
}

template <typename V> DEVICE void put(u8 *to, const V &v, u32)
{
    put(to, v);
}

// A Kept waits for when it is needed, once in a share: slices, which take many registers,
// in the thread's local memory.
template <typename V> struct Kept {
    V v;
};

template <typename V> DEVICE void keep(Kept<V> &k, const V &v)
{
    k.v = v;
}

template <typename V> DEVICE void get(V &v, const Kept<V> &k)
{
    v = k.v;
}

#ifdef __CUDACC__

template <u32 ROWS> struct Kept<Slice<ROWS>> {
    volatile u32 word[4 * ROWS + 1];
};

template <u32 ROWS> DEVICE void keep(Kept<Slice<ROWS>> &k, const Slice<ROWS> &s)
{
    UNROLL
    for (u32 r = 0; r < ROWS; r++) {
        k.word[4 * r] = s.row[r].x;
        k.word[4 * r + 1] = s.row[r].y;
        k.word[4 * r + 2] = s.row[r].z;
        k.word[4 * r + 3] = s.row[r].w;
    }
    k.word[4 * ROWS] = s.at;
}

template <u32 ROWS> DEVICE void get(Slice<ROWS> &s, const Kept<Slice<ROWS>> &k)
{
    UNROLL
    for (u32 r = 0; r < ROWS; r++)
        s.row[r] = Vec16{k.word[4 * r], k.word[4 * r + 1], k.word[4 * r + 2], k.word[4 * r + 3]};
    s.at = k.word[4 * ROWS];
}

#endif

template <typename V> DEVICE void swap(V &v, Kept<V> &k)
{
    const V kept = v;
    get(v, k);
    keep(k, kept);
}
