package fakecuda

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
// #include "driver/fakecuda.h"
//
// static void *library;
//
// static const char *open_library(const char *path)
// {
// 	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
// 	return library ? NULL : dlerror();
// }
//
// static void call_fail(const char *function, int nth, int code)
// {
// 	((void (*)(const char *, int, int))dlsym(library, "fakecuda_fail"))(function, nth, code);
// }
//
// static void call_reset(void) { ((void (*)(void))dlsym(library, "fakecuda_reset"))(); }
//
// static int call_calls(void) { return ((int (*)(void))dlsym(library, "fakecuda_calls"))(); }
//
// static const char *call_call(int n) { return ((const char *(*)(int))dlsym(library, "fakecuda_call"))(n); }
//
// static long long call_live(int kind) { return ((long long (*)(int))dlsym(library, "fakecuda_live"))(kind); }
//
// static long long call_damaged(void) { return ((long long (*)(void))dlsym(library, "fakecuda_damaged"))(); }
//
// static void call_forbid(uintptr_t memory, size_t bytes)
// {
// 	((void (*)(void *, size_t))dlsym(library, "fakecuda_forbid"))((void *)memory, bytes);
// }
//
// static int call_current(void) { return ((int (*)(void))dlsym(library, "fakecuda_current"))(); }
import "C"

import (
	"errors"
	"unsafe"
)

// Load loads the fake driver from a file into the process. It must come before the
// first use of CUDA: the driver is then found by its soname. Call the other functions
// only after it has succeeded.
func Load(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if text := C.open_library(name); text != nil {
		return errors.New(C.GoString(text))
	}
	return nil
}

// Any as the function of Fail is every driver function.
const Any = "*"

// Fail lets the nth call from now on (1 is the next) of a driver function return a
// CUresult without doing anything.
func Fail(function string, nth, code int) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.call_fail(name, C.int(nth), C.int(code))
}

// Reset forgets failures, the log, and errors that contexts are stuck with.
func Reset() { C.call_reset() }

// Log returns the driver calls since the last reset. A launch's entry has its kernel,
// grid and stream, see driver/fakecuda.h.
func Log() []string {
	log := make([]string, C.call_calls())
	for i := range log {
		log[i] = C.GoString(C.call_call(C.int(i)))
	}
	return log
}

// Live is how many objects of each kind are alive. Contexts counts references to
// primary contexts and the others, Bytes those of device memory, Pinned those of host memory.
type Live struct {
	Contexts, Modules, Allocations, Bytes, Streams, Events, Graphs, Pinned int
}

// Alive counts the objects that are alive.
func Alive() Live {
	count := func(kind C.int) int { return int(C.call_live(kind)) }
	return Live{
		Contexts:    count(C.FAKECUDA_CONTEXTS),
		Modules:     count(C.FAKECUDA_MODULES),
		Allocations: count(C.FAKECUDA_ALLOCATIONS),
		Bytes:       count(C.FAKECUDA_BYTES),
		Streams:     count(C.FAKECUDA_STREAMS),
		Events:      count(C.FAKECUDA_EVENTS),
		Graphs:      count(C.FAKECUDA_GRAPHS),
		Pinned:      count(C.FAKECUDA_PINNED),
	}
}

// Forbid makes kernels trap on the first bytes of an allocation, so that memory can
// seem to start anywhere.
func Forbid(memory uintptr, bytes int) { C.call_forbid(C.uintptr_t(memory), C.size_t(bytes)) }

// DamagedGuards returns how many guard bytes around live device memory have changed.
func DamagedGuards() int { return int(C.call_damaged()) }

// Current returns the device whose context is current on the calling thread, or -1.
// It is no driver call.
func Current() int { return int(C.call_current()) }
