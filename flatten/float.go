package flatten

import "math"

// Float is a type of floating-point numbers that can be converted to the others.
type Float uint8

// The types, numbered as in python/goflat/_proofs.py.
const (
	Float64 Float = iota
	Float32
	Float16
	BFloat16
	Float8E4M3FN
	Float8E5M2
	NumFloats
)

// floats says what the types are made of: the DLPack dtype, bits of the fraction, the bias of
// exponents; and what kernels call them.
var floats = [NumFloats]struct {
	dtype    DType
	fraction int
	bias     int
	short    string
}{
	Float64:      {DType{CodeFloat, 64, 1}, 52, 1023, "f64"},
	Float32:      {DType{CodeFloat, 32, 1}, 23, 127, "f32"},
	Float16:      {DType{CodeFloat, 16, 1}, 10, 15, "f16"},
	BFloat16:     {DType{CodeBfloat, 16, 1}, 7, 127, "bf16"},
	Float8E4M3FN: {DType{CodeFloat8E4M3FN, 8, 1}, 3, 7, "e4m3"},
	Float8E5M2:   {DType{CodeFloat8E5M2, 8, 1}, 2, 15, "e5m2"},
}

// FloatOf returns the type of a dtype, and whether it is one.
func FloatOf(d DType) (Float, bool) {
	for f := range NumFloats {
		if floats[f].dtype == d {
			return f, true
		}
	}
	return 0, false
}

// DType is the dtype of f.
func (f Float) DType() DType { return floats[f].dtype }

// Bytes is the size of a number.
func (f Float) Bytes() int64 { return floats[f].dtype.ElemBytes() }

// Short is the name in kernels: "f32", "bf16", "e4m3".
func (f Float) Short() string { return floats[f].short }

// String is the name of the dtype.
func (f Float) String() string { return floats[f].dtype.String() }

// Rules are what conversions to some types do with numbers that these do not have. They differ
// between releases of torch and between devices.
//
// For BFloat16 it is the code of a NaN: 0x7fff, or 0x7fc0 on devices before sm_80. For
// Float8E4M3FN it is the code of what is too large: that of a NaN, 0x7f, or from torch 2.15 on
// that of the largest number, 0x7e. Other types have no choice, and 0.
type Rules uint16

// Convert is the plain meaning of a conversion on a CUDA device: the code of one number in
// another type. It rounds to the nearest number, ties to even, by way of float32, as torch does:
// so a float64 is rounded twice on its way to 16 or 8 bits. A number keeps its code in its own type.
func Convert(to, from Float, code uint64, rules Rules) uint64 {
	if to == from {
		return code
	}
	return to.encode(from.decode(code), rules)
}

// nan32 is the bits of a NaN as the instruction for halves makes it.
const nan32 = 0x7fffffff

// decode returns the float32 of a code.
func (f Float) decode(code uint64) float32 {
	switch f {
	case Float64:
		if v := math.Float64frombits(code); v == v {
			return float32(v)
		}
		return math.Float32frombits(uint32(code>>32)&(1<<31) | 0x7fc00000 | uint32(code>>29)&0x3fffff)
	case Float32:
		return math.Float32frombits(uint32(code))
	case BFloat16:
		return math.Float32frombits(uint32(code) << 16)
	}
	size, fraction := int(floats[f].dtype.Bits), floats[f].fraction
	sign, magnitude := uint32(code>>(size-1)), code&(1<<(size-1)-1)
	infinity := uint64(1)<<(size-1) - 1<<fraction
	if f == Float8E4M3FN {
		infinity = 0x7f // has none, and one NaN
	}
	if magnitude >= infinity {
		return math.Float32frombits(f.special(sign<<31, magnitude > infinity))
	}
	exponent, rest := int(magnitude>>fraction), float64(magnitude&(1<<fraction-1))
	if exponent > 0 {
		rest += float64(int(1) << fraction)
	} else {
		exponent = 1
	}
	v := float32(math.Ldexp(rest, exponent-floats[f].bias-fraction))
	return math.Float32frombits(math.Float32bits(v) | sign<<31)
}

// special returns the bits of the float32 of an infinity or a NaN. An instruction makes those of
// halves, torch those of 8 bits.
func (f Float) special(sign uint32, nan bool) uint32 {
	switch {
	case f == Float8E4M3FN:
		return sign | 0x7ff00000
	case !nan:
		return sign | 0x7f800000
	case f == Float8E5M2:
		return sign | nan32
	}
	return nan32
}

// encode returns the code of a float32.
func (f Float) encode(v float32, rules Rules) uint64 {
	bits := uint64(math.Float32bits(v))
	switch {
	case f == Float32:
		return bits
	case v != v:
		return f.nan(bits, rules)
	case f == Float64:
		return math.Float64bits(float64(v))
	}
	size, fraction := int(floats[f].dtype.Bits), floats[f].fraction
	most := uint64(1)<<(size-1) - 1<<fraction // infinity
	if f == Float8E4M3FN {
		most = uint64(rules)
	}
	return bits>>31<<(size-1) | min(f.round(math.Abs(float64(v))), most)
}

// nan returns the code of a NaN of float32. Only float64 keeps its payload.
func (f Float) nan(bits uint64, rules Rules) uint64 {
	switch f {
	case Float64:
		return bits>>31<<63 | 0x7ff8<<48 | bits&0x7fffff<<29
	case Float16:
		return 0x7fff
	case BFloat16:
		return uint64(rules)
	}
	return bits>>31<<7 | 0x7f
}

// round returns the code that a magnitude would have if f had no largest number.
func (f Float) round(v float64) uint64 {
	fraction, bias := floats[f].fraction, floats[f].bias
	if v > math.MaxFloat32 {
		v = math.MaxFloat32
	}
	_, exponent := math.Frexp(v)
	exponent = max(exponent-1, 1-bias) // of the last bit, less the fraction
	n := uint64(math.RoundToEven(math.Ldexp(v, fraction-exponent)))
	if n < 1<<fraction {
		return n // subnormal
	}
	return n - 1<<fraction + uint64(exponent+bias)<<fraction
}
