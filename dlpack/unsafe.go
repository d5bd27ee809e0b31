package dlpack

// #include "abi.h"
import "C"

import (
	"slices"
	"unsafe"
)

// Addresses here are not Go's, except for pinned memory in an export: they belong to the
// producer of a tensor, who keeps what they point to until its deleter is called.

// pointer is the address as C has it. Converted through memory: as a conversion it would
// look like pointer arithmetic to vet.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// memory is n bytes from an address on.
func memory(address uintptr, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(address)), n)
}

// extents is an array of C, to be written to.
func extents(first *C.int64_t, n C.int32_t) []int64 {
	return unsafe.Slice((*int64)(unsafe.Pointer(first)), int(n))
}

// int64s is a copy of an array of C.
func int64s(first *C.int64_t, n C.int32_t) []int64 { return slices.Clone(extents(first, n)) }

// asBytes is the memory of a Go slice.
func asBytes[T Number](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
