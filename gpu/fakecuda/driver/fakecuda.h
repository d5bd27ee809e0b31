// fakecuda.h: what a test may ask of the fake driver beyond the driver API. All
// functions are exported from libcuda.so.1, take plain types so that Go (dlsym) and
// Python (ctypes) reach them alike, and are safe to call from several threads.
//
// Environment, read when the library is loaded:
//   FAKECUDA_FAIL            "cuInit:1:999,cuLaunchKernel:2:700": calls that fail
//   FAKECUDA_DEVICES         number of devices, 2 if unset
//   FAKECUDA_DRIVER_VERSION  12090 if unset
//   CUDA_VISIBLE_DEVICES     only whether it is empty
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// fakecuda_fail lets the nth call from now on (1 is the next) of a driver function,
// or of any if function is "*", return a CUresult without doing anything.
void fakecuda_fail(const char *function, int nth, int code);

// fakecuda_reset forgets failures, log and sticky errors. Objects stay.
void fakecuda_reset(void);

// fakecuda_calls returns how many calls there were since the last reset.
int fakecuda_calls(void);

// fakecuda_call returns the text of a call: the function's name, and for launches
// "cuLaunchKernel gather_block_4k device 0 grid 12 block 512 stream 0x1", the same with
// cuLaunchCooperativeKernel. NULL if there was none of that number. Valid until the next reset.
const char *fakecuda_call(int number);

// What is alive. Contexts counts retains of primary contexts and the other contexts.
enum fakecuda_kind {
    FAKECUDA_CONTEXTS,
    FAKECUDA_MODULES,
    FAKECUDA_ALLOCATIONS,
    FAKECUDA_BYTES,
    FAKECUDA_STREAMS,
    FAKECUDA_EVENTS,
    FAKECUDA_GRAPHS,
    FAKECUDA_PINNED, // bytes of host memory
};
long long fakecuda_live(int kind);

// What there is of reserved addresses (a count), of memory behind mappings and handles
// and of mapped addresses (bytes).
enum fakecuda_vmm_kind {
    FAKECUDA_RESERVATIONS,
    FAKECUDA_PHYSICAL,
    FAKECUDA_MAPPED,
};
long long fakecuda_vmm(int kind);

// fakecuda_limit lets cuMemCreate run out of memory: so many bytes may exist. 0: no limit.
void fakecuda_limit(size_t bytes);

// fakecuda_alloc returns device memory, aligned to 256 bytes, without any context;
// NULL if the device does not exist. fakecuda_free frees it, or any of cuMemAlloc.
void *fakecuda_alloc(int device, size_t bytes);
void fakecuda_free(void *memory);

// fakecuda_forbid makes kernels trap on the first bytes of an allocation, which starts at
// a multiple of 256: so memory can seem to start anywhere.
void fakecuda_forbid(void *memory, size_t bytes);

// fakecuda_damaged returns how many guard bytes around live device memory have
// changed. Kernels cannot reach them, their accesses are checked one by one.
long long fakecuda_damaged(void);

// fakecuda_current returns the device whose context is current on this thread, -1 if
// none is. It is no driver call.
int fakecuda_current(void);

#ifdef __cplusplus
}
#endif
#endif
