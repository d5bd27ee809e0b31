// Package kernels holds the CUDA kernels as PTX, which the driver compiles for the
// device when a module is loaded.
//
// The .ptx files are generated from the .cu files by generate.py. The same sources
// compile as C++ for the fake driver of the tests.
package kernels

import (
	"embed"

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

//go:embed cast_*.ptx
var casts embed.FS

// Cast is cast.cu for two types: Gather with a conversion.
func Cast(from, to flatten.Float) string {
	ptx, err := casts.ReadFile(castFile(from, to))
	if err != nil {
		panic(err) // the embedded files are those of the types
	}
	return string(ptx)
}

func castFile(from, to flatten.Float) string {
	return "cast_" + from.Short() + "_" + to.Short() + ".ptx"
}
