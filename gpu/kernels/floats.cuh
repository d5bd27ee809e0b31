// floats.cuh: the types that cast.cuh converts between, bit for bit as torch does it on a device.
#pragma once

#include "common.cuh"

DEVICE u32 bits_of(float v)
{
#ifdef __CUDACC__
    return __float_as_uint(v);
#else
    return host_bits<u32>(v);
#endif
}

DEVICE float float_of(u32 bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    return host_bits<float>(bits);
#endif
}

DEVICE float half_to_float(u32 bits)
{
#ifdef __CUDACC__
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(u16(bits)));
    return v;
#else
    return host_half_to_float(bits);
#endif
}

DEVICE u32 float_to_half(float v)
{
#ifdef __CUDACC__
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
#else
    return host_float_to_half(v);
#endif
}

DEVICE float double_to_float(u64 bits)
{
#ifdef __CUDACC__
    return __double2float_rn(__longlong_as_double(bits));
#else
    return host_double_to_float(bits);
#endif
}

DEVICE u64 float_to_double(float v)
{
#ifdef __CUDACC__
    return __double_as_longlong(double(v));
#else
    return host_float_to_double(v);
#endif
}

// round_to_8 returns the code of a positive float in a type of so many bits of mantissa and a
// bias, as if the type had no largest number.
template <u32 MANTISSA, u32 BIAS> DEVICE u32 round_to_8(float v)
{
    const u32 dropped = 23 - MANTISSA, bits = bits_of(v);
    // Added to what is below the smallest normal number, it leaves the code in the last bits.
    const u32 magic = 127 - BIAS + dropped + 1 << 23;
    const u32 subnormal = bits_of(v + float_of(magic)) - magic;
    const u32 normal = bits + (bits >> dropped & 1) + ((1u << dropped - 1) - 1 - (127 - BIAS << 23));
    return bits < 128 - BIAS << 23 ? subnormal : normal >> dropped;
}

// round_few_to_8 is round_to_8 for a float of at most 11 significant bits: with the exponents of
// the type, and so with its subnormals, it is still exact. Of a float32 it would round twice.
template <u32 MANTISSA, u32 BIAS> DEVICE u32 round_few_to_8(float v)
{
    const u32 dropped = 23 - MANTISSA, bits = bits_of(v * float_of(BIAS << 23));
    return bits + (bits >> dropped & 1) + ((1u << dropped - 1) - 1) >> dropped;
}

// The types. decode gives a value as a float, encode rounds a float to the nearest value, ties
// to even. Every conversion goes through float as torch's do, where a float64 is rounded twice
// on its way to 16 or 8 bits.
//
// `special` is what differs between releases of torch or between devices: the bfloat16 of a NaN
// (0x7fff, before sm_80 0x7fc0), and the most that a float8_e4m3fn becomes (a NaN, 0x7f; from
// torch 2.15 on the largest number, 0x7e).
struct f64 {
    typedef u64 Bits;
    DEVICE float decode(u64 bits)
    {
        return double_to_float(bits);
    }
    template <typename S> DEVICE u64 encode(float v, u32)
    {
        return float_to_double(v);
    }
};

struct f32 {
    typedef u32 Bits;
    DEVICE float decode(u32 bits)
    {
        return float_of(bits);
    }
    template <typename S> DEVICE u32 encode(float v, u32)
    {
        return bits_of(v);
    }
};

struct f16 {
    typedef u16 Bits;
    DEVICE float decode(u32 bits)
    {
        return half_to_float(bits);
    }
    template <typename S> DEVICE u32 encode(float v, u32)
    {
        return float_to_half(v);
    }
};

struct bf16 {
    typedef u16 Bits;
    DEVICE float decode(u32 bits)
    {
        return float_of(bits << 16);
    }
    template <typename S> DEVICE u32 encode(float v, u32 special)
    {
        const u32 bits = bits_of(v);
        return v != v ? special : bits + 0x7fff + (bits >> 16 & 1) >> 16;
    }
};

struct e4m3 {
    typedef u8 Bits;
    DEVICE float decode(u32 bits)
    {
        const u32 magnitude = bits & 0x7f;
        // Where a float has its exponent the bits are a value 2^120 times as small.
        const float value = float_of(magnitude << 20) * float_of(247u << 23);
        return float_of((bits & 0x80) << 24 | (magnitude == 0x7f ? 0x7ff00000 : bits_of(value)));
    }
    template <typename S> DEVICE u32 encode(float v, u32 special)
    {
        const float magnitude = float_of(bits_of(v) & 0x7fffffff);
        const u32 code = sizeof(typename S::Bits) > 2 ? round_to_8<3, 7>(magnitude) : round_few_to_8<3, 7>(magnitude);
        return (v != v ? 0x7f : smaller(code, special)) | bits_of(v) >> 24 & 0x80;
    }
};

struct e5m2 {
    typedef u8 Bits;
    DEVICE float decode(u32 bits)
    {
        const float value = half_to_float(bits << 8 & 0x7f00);
        return float_of((bits & 0x80) << 24 | ((bits & 0x7f) > 0x7c ? 0x7fffffff : bits_of(value)));
    }
    template <typename S> DEVICE u32 encode(float v, u32)
    {
        const float magnitude = float_of(bits_of(v) & 0x7fffffff);
        const u32 code = sizeof(typename S::Bits) > 2 ? round_to_8<2, 15>(magnitude) : round_few_to_8<2, 15>(magnitude);
        return (v != v ? 0x7f : smaller(code, 0x7cu)) | bits_of(v) >> 24 & 0x80;
    }
};

template <typename S, typename T> struct Conversion {
    DEVICE typename T::Bits of(typename S::Bits bits, u32 special)
    {
        return T::template encode<S>(S::decode(bits), special);
    }
};

template <typename T> struct Conversion<T, T> {
    DEVICE typename T::Bits of(typename T::Bits bits, u32)
    {
        return bits;
    }
};
