package cudatest

// #include <stdint.h>
// #include <sys/types.h>
//
// static uintptr_t call_alloc(uintptr_t f, ssize_t bytes, int device, uintptr_t stream)
// {
// 	return (uintptr_t)((void *(*)(ssize_t, int, void *))f)(bytes, device, (void *)stream);
// }
//
// static void call_free(uintptr_t f, uintptr_t memory, ssize_t bytes, int device, uintptr_t stream)
// {
// 	((void (*)(void *, ssize_t, int, void *))f)((void *)memory, bytes, device, (void *)stream);
// }
//
// static int call_claim(uintptr_t f, uint64_t lo, uint64_t hi) { return ((int (*)(uint64_t, uint64_t))f)(lo, hi); }
//
// static void call_unclaim(uintptr_t f, uint64_t lo, uint64_t hi) { ((void (*)(uint64_t, uint64_t))f)(lo, hi); }
//
// static int call_ready(uintptr_t f, int device) { return ((int (*)(int))f)(device); }
//
// static int64_t call_reopen(uintptr_t f, int device) { return ((int64_t(*)(int))f)(device); }
//
// static int call_go_on(uintptr_t f, int device, int64_t id, int64_t next) { return ((int (*)(int, int64_t, int64_t))f)(device, id, next); }
import "C"

// Alloc calls an allocator function as torch does; 0 if it has no memory.
func Alloc(f uintptr, bytes int64, device int, stream uintptr) uint64 {
	return uint64(C.call_alloc(C.uintptr_t(f), C.ssize_t(bytes), C.int(device), C.uintptr_t(stream)))
}

// Free calls a function that takes back what Alloc gave.
func Free(f uintptr, memory uint64, bytes int64, device int, stream uintptr) {
	C.call_free(C.uintptr_t(f), C.uintptr_t(memory), C.ssize_t(bytes), C.int(device), C.uintptr_t(stream))
}

// Claim calls a function over a span of addresses.
func Claim(f uintptr, lo, hi uint64) bool {
	return C.call_claim(C.uintptr_t(f), C.uint64_t(lo), C.uint64_t(hi)) != 0
}

// Unclaim calls the function that ends a claim.
func Unclaim(f uintptr, lo, hi uint64) {
	C.call_unclaim(C.uintptr_t(f), C.uint64_t(lo), C.uint64_t(hi))
}

// Ready calls the first of gpu.CollectSwitches.
func Ready(f uintptr, device int) bool { return C.call_ready(C.uintptr_t(f), C.int(device)) != 0 }

// Reopen calls the second one.
func Reopen(f uintptr, device int) int64 {
	return int64(C.call_reopen(C.uintptr_t(f), C.int(device)))
}

// GoOn calls the third one.
func GoOn(f uintptr, device int, id, next int64) bool {
	return C.call_go_on(C.uintptr_t(f), C.int(device), C.int64_t(id), C.int64_t(next)) != 0
}
