// hostfloat.h: the conversions of gpu/kernels/cast.cu that a device has instructions for, as an
// H200 does them. What the instructions make of NaNs is their own; the host's differ.
#pragma once

#include <cstdint>
#include <cstring>

template <typename To, typename From> inline To host_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits;
}

const uint32_t host_nan = 0x7fffffff; // what float instructions make of any NaN

inline float host_half_to_float(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude > 0x7c00)
        return host_bits<float>(host_nan);
    if (magnitude == 0x7c00)
        return host_bits<float>(sign | 0x7f800000);
    const float value = host_bits<float>(magnitude << 13) * host_bits<float>(uint32_t(239) << 23); // 2^112
    return host_bits<float>(sign | host_bits<uint32_t>(value));
}

inline uint32_t host_float_to_half(float v)
{
    const uint32_t bits = host_bits<uint32_t>(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000) // 65520 rounds to what is beyond all halves
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { // below 2^-14: a multiple of 2^-24, which is the last bit of 0.5
        const float shifted = host_bits<float>(magnitude) + 0.5f;
        return sign | (host_bits<uint32_t>(shifted) - 0x3f000000);
    }
    return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

// Between float and double a NaN keeps its sign and the first bits of its payload, and is quiet.
inline float host_double_to_float(uint64_t bits)
{
    const double v = host_bits<double>(bits);
    if (v == v)
        return float(v);
    return host_bits<float>(uint32_t(bits >> 32 & 0x80000000) | 0x7fc00000 | uint32_t(bits >> 29 & 0x3fffff));
}

inline uint64_t host_float_to_double(float v)
{
    const uint64_t bits = host_bits<uint32_t>(v);
    if (v == v)
        return host_bits<uint64_t>(double(v));
    return (bits & 0x80000000) << 32 | 0x7ff8000000000000 | (bits & 0x7fffff) << 29;
}
