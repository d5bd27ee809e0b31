package gpu

import (
	"unsafe"

	"gorgonia.org/cu"
)

// gorgonia.org/cu wraps the driver's handles in structs of one unexported pointer, whose
// accessors return types of cgo's that other packages cannot name. The handles are the driver's, not Go memory, and stay
// valid as long as a [device] keeps its context and its module. unsafe_test.go checks
// the sizes.

func contextHandle(c cu.CUContext) uintptr { return *(*uintptr)(unsafe.Pointer(&c)) }

func functionHandle(f cu.Function) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// StreamHandle returns the handle of a stream, as the functions of this package take it.
func StreamHandle(s cu.Stream) uintptr { return *(*uintptr)(unsafe.Pointer(&s)) }

// addresses is the same list: a DevicePtr is an uintptr.
func addresses(list []cu.DevicePtr) []uintptr {
	return unsafe.Slice((*uintptr)(unsafe.SliceData(list)), len(list))
}

// hostWords returns memory of cuMemHostAlloc, which Go does not manage. It stays valid until it
// is freed.
func hostWords(address uintptr, n int) []uint32 {
	return unsafe.Slice(*(**uint32)(unsafe.Pointer(&address)), n)
}
