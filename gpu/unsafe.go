package gpu

import (
	"unsafe"

	"gorgonia.org/cu"
)

// gorgonia.org/cu wraps the driver's handles in structs of one unexported pointer and
// has no accessor for these two. The handles are the driver's, not Go memory, and stay
// valid as long as a [device] keeps its context and its module. unsafe_test.go checks
// the sizes.

func contextHandle(c cu.CUContext) uintptr { return *(*uintptr)(unsafe.Pointer(&c)) }

func functionHandle(f cu.Function) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// hostWords returns memory of cuMemHostAlloc, which Go does not manage. It stays valid until it
// is freed.
func hostWords(address uintptr, n int) []uint32 {
	return unsafe.Slice(*(**uint32)(unsafe.Pointer(&address)), n)
}
