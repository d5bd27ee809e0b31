// Package kernels holds the CUDA kernels as PTX, which the driver compiles for the
// device when a module is loaded.
//
// The .ptx files are generated from the .cu files by generate.py. The same sources
// compile as C++ for the fake driver of the tests.
package kernels

import _ "embed"

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
