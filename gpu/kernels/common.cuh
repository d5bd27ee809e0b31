// common.cuh: what every kernel is written in.
//
// The same source is compiled twice: by NVRTC to PTX, and by the host's C++ compiler
// for the fake driver (gpu/fakecuda), which runs a kernel thread by thread. So a
// helper with inline PTX has a host twin beside it, and the twin checks what the
// hardware would trap on.
//
// Rules: 64-bit byte offsets, 16-byte accesses only through load16/store16, no
// access outside the bytes that a thread was told to move.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Vec16 {
    u32 x, y, z, w;
};

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
// A kernel of so many threads a block, of which so many blocks fit on a multiprocessor.
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
// A kernel parameter that stays in constant memory, where it can be indexed.
#define PARAMETER(type) const __grid_constant__ type

#else

#include "host.h"

#endif

// load16 loads 16 aligned bytes that nothing writes during the launch.
DEVICE Vec16 load16(const u8 *from)
{
#ifdef __CUDACC__
    Vec16 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#else
    return host_load<Vec16>(from);
#endif
}

// store16 stores 16 aligned bytes (.wt: write through). Of plain, evict-first and
// write-through stores the last is the fastest on an H200 by up to half a percent, and
// evict-first ones (.cs) take 1.05 times as long as memcpy where L2 is full of ordinary lines.
DEVICE void store16(u8 *to, Vec16 v)
{
#ifdef __CUDACC__
    asm volatile("st.global.wt.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#else
    host_store<Vec16>(to, v);
#endif
}

// load and store move one aligned element.
template <typename T> DEVICE void load(T &v, const u8 *from)
{
#ifdef __CUDACC__
    v = *reinterpret_cast<const T *>(from);
#else
    v = host_load<T>(from);
#endif
}

template <typename T> DEVICE void store(u8 *to, T v)
{
#ifdef __CUDACC__
    *reinterpret_cast<T *>(to) = v;
#else
    host_store<T>(to, v);
#endif
}

DEVICE void load(Vec16 &v, const u8 *from)
{
    v = load16(from);
}

DEVICE void store(u8 *to, Vec16 v)
{
    store16(to, v);
}

// shift_right returns the low 32 bits of high:low >> bits, for bits below 32.
DEVICE u32 shift_right(u32 low, u32 high, u32 bits)
{
#ifdef __CUDACC__
    u32 r;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(bits));
    return r;
#else
    return u32((u64(high) << 32 | low) >> bits);
#endif
}

// multiply_high returns the upper 32 bits of a product.
DEVICE u32 multiply_high(u32 a, u32 b)
{
#ifdef __CUDACC__
    u32 r;
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#else
    return u32(u64(a) * b >> 32);
#endif
}

// extract returns the 16 bytes at offset `at`, 1 to 15, of the 32 bytes a, b.
DEVICE Vec16 extract(Vec16 a, Vec16 b, u32 at)
{
    u32 w0 = a.x, w1 = a.y, w2 = a.z, w3 = a.w, w4 = b.x, w5 = b.y, w6 = b.z;
    if (at & 8) {
        w0 = w2, w1 = w3, w2 = w4, w3 = w5, w4 = w6, w5 = b.w;
    }
    if (at & 4) {
        w0 = w1, w1 = w2, w2 = w3, w3 = w4, w4 = w5;
    }
    u32 bits = at % 4 * 8;
    return Vec16{shift_right(w0, w1, bits), shift_right(w1, w2, bits), shift_right(w2, w3, bits), shift_right(w3, w4, bits)};
}

// next_lanes returns what the next thread of the warp passes as v, the first thread's for
// the last one. All threads of a warp call it together. `from` is where the vector that
// is to be had lies, if it is wanted at all: a host runs threads one by one and loads it.
DEVICE Vec16 next_lanes(Vec16 v, const u8 *from, bool wanted)
{
#ifdef __CUDACC__
    const u32 next = threadIdx.x + 1 & 31;
    return Vec16{__shfl_sync(~0u, v.x, next), __shfl_sync(~0u, v.y, next), __shfl_sync(~0u, v.z, next), __shfl_sync(~0u, v.w, next)};
#else
    return wanted ? host_load<Vec16>(from) : v;
#endif
}

template <typename T> DEVICE T smaller(T a, T b)
{
    return a < b ? a : b;
}

template <typename T> DEVICE T larger(T a, T b)
{
    return a < b ? b : a;
}

DEVICE u64 address(const u8 *p)
{
    return reinterpret_cast<u64>(p);
}
