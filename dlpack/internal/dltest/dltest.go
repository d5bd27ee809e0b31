// Package dltest is another library that speaks DLPack, for tests: it makes tensors whose
// deleters count, and consumes some on threads that Go does not know. Test files themselves
// cannot use cgo.
package dltest

// #cgo LDFLAGS: -lpthread
// #include <pthread.h>
// #include <stdlib.h>
// #include <string.h>
// #include "../../abi.h"
//
// static int deleted;
//
// static void delete_versioned(goflat_dl_versioned *m) { deleted++; free(m); }
// static void delete_unversioned(goflat_dl_unversioned *m) { deleted++; free(m); }
//
// static int count(void) { return deleted; }
//
// static goflat_dl_versioned *new_versioned(goflat_dl_tensor *t, uint32_t major, uint64_t flags)
// {
// 	goflat_dl_versioned *m = calloc(1, sizeof *m);
// 	m->major = major, m->flags = flags, m->tensor = *t, m->deleter = delete_versioned;
// 	return m;
// }
//
// static goflat_dl_unversioned *new_unversioned(goflat_dl_tensor *t)
// {
// 	goflat_dl_unversioned *m = calloc(1, sizeof *m);
// 	m->tensor = *t, m->deleter = delete_unversioned;
// 	return m;
// }
//
// static void drop_deleter(goflat_dl_versioned *m) { m->deleter = NULL; }
//
// static void *consume(void *managed)
// {
// 	goflat_dl_versioned *m = managed;
// 	m->deleter(m);
// 	return NULL;
// }
//
// static int consume_elsewhere(void *managed)
// {
// 	pthread_t thread;
// 	int failed = pthread_create(&thread, NULL, consume, managed);
// 	return failed ? failed : pthread_join(thread, NULL);
// }
import "C"

import (
	"fmt"
	"unsafe"
)

// Spec is a tensor as the struct says it. Extents and strides are copied to memory that is
// never freed.
type Spec struct {
	Data       unsafe.Pointer // of [Memory], or nil
	Offset     uint64
	Type       int32
	Code, Bits uint8
	Lanes      uint16
	Ndim       int32
	Shape      []int64
	Strides    []int64 // nil: NULL
	Major      uint32
	Flags      uint64
}

// Memory is zeroed memory of C, never freed.
func Memory(bytes int) unsafe.Pointer { return C.calloc(1, C.size_t(max(bytes, 1))) }

// Versioned makes a DLManagedTensorVersioned.
func Versioned(s Spec) unsafe.Pointer {
	t := tensor(s)
	return unsafe.Pointer(C.new_versioned(&t, C.uint32_t(s.Major), C.uint64_t(s.Flags)))
}

// Unversioned makes a DLManagedTensor.
func Unversioned(s Spec) unsafe.Pointer {
	t := tensor(s)
	return unsafe.Pointer(C.new_unversioned(&t))
}

// WithoutDeleter takes the deleter off a struct of Versioned.
func WithoutDeleter(managed unsafe.Pointer) unsafe.Pointer {
	C.drop_deleter((*C.goflat_dl_versioned)(managed))
	return managed
}

func tensor(s Spec) C.goflat_dl_tensor {
	return C.goflat_dl_tensor{
		data: s.Data, device_type: C.int32_t(s.Type), ndim: C.int32_t(s.Ndim), code: C.uint8_t(s.Code),
		bits: C.uint8_t(s.Bits), lanes: C.uint16_t(s.Lanes), shape: array(s.Shape), strides: array(s.Strides),
		byte_offset: C.uint64_t(s.Offset),
	}
}

func array(values []int64) *C.int64_t {
	if values == nil {
		return nil
	}
	memory := Memory(8 * len(values))
	copy(unsafe.Slice((*int64)(memory), len(values)), values)
	return (*C.int64_t)(memory)
}

// Deleted is how many deleters of this package have been called.
func Deleted() int { return int(C.count()) }

// Consume calls the deleter of a DLManagedTensorVersioned on a thread of C.
func Consume(managed unsafe.Pointer) error {
	if code := C.consume_elsewhere(managed); code != 0 {
		return fmt.Errorf("start a thread: %d", int(code))
	}
	return nil
}

// Flags is the flags word of a DLManagedTensorVersioned.
func Flags(managed unsafe.Pointer) uint64 { return uint64((*C.goflat_dl_versioned)(managed).flags) }

// Strides are the strides that a DLManagedTensorVersioned says, in elements.
func Strides(managed unsafe.Pointer) []int64 {
	t := &(*C.goflat_dl_versioned)(managed).tensor
	return unsafe.Slice((*int64)(unsafe.Pointer(t.strides)), int(t.ndim))
}
