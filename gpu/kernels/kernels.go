// Package kernels holds the CUDA kernels as PTX, which the driver compiles for the
// device when a module is loaded.
//
// The .ptx files are generated from the .cu files by generate.py. The same sources
// compile as C++ for the fake driver of the tests.
package kernels

import (
	_ "embed"

	"github.com/goflat/goflat/flatten"
)

// Gather is gather.cu: the copy from entries to outputs.
//
//go:embed gather.ptx
var Gather string

// Permute is permute.cu: units moved within the memory that they lie in.
//
//go:embed permute.ptx
var Permute string

// Reference is reference.cu: Gather the obvious way, for tests on a device.
//
//go:embed reference.ptx
var Reference string

// Casts are cast_*.cu: Gather with a conversion, one module for each type that it converts to.
var Casts = [flatten.NumFloats]string{
	flatten.Float64: castF64, flatten.Float32: castF32, flatten.Float16: castF16,
	flatten.BFloat16: castBF16, flatten.Float8E4M3FN: castE4M3, flatten.Float8E5M2: castE5M2,
}

var (
	//go:embed cast_f64.ptx
	castF64 string
	//go:embed cast_f32.ptx
	castF32 string
	//go:embed cast_f16.ptx
	castF16 string
	//go:embed cast_bf16.ptx
	castBF16 string
	//go:embed cast_e4m3.ptx
	castE4M3 string
	//go:embed cast_e5m2.ptx
	castE5M2 string
)
