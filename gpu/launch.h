// launch.h: the driver calls of a warm gather, in C because gorgonia.org/cu neither
// passes structs to kernels nor works without allocating.
#ifndef GOFLAT_GPU_LAUNCH_H
#define GOFLAT_GPU_LAUNCH_H

#include <stdint.h>

#include <cuda.h>

// goflat_status is a driver function's answer and which it was.
typedef struct {
	CUresult code;
	const char *call; // static
} goflat_status;

// goflat_answer is a number, with the status of the call that gave it.
typedef struct {
	goflat_status status;
	uintptr_t value;
} goflat_answer;

// Handles travel as integers: the reserved streams 1 and 2 are no addresses, and Go
// must not see them as pointers.

// goflat_scope is a context made current for a while.
typedef struct {
	goflat_status status;
	uintptr_t previous; // the context that was current
	int entered;        // whether there is anything to undo
} goflat_scope;

// goflat_enter makes a context current, unless it is so already.
goflat_scope goflat_enter(uintptr_t context);

// goflat_leave makes the previous context current again.
goflat_status goflat_leave(goflat_scope scope);

// goflat_launch launches a kernel of one parameter, a struct, on a one-dimensional
// grid. The driver copies the parameter before it returns.
goflat_status goflat_launch(uintptr_t function, uint32_t blocks, uint32_t threads, uintptr_t stream, const void *parameter);

// goflat_exchange_capture_mode sets how this thread's calls treat stream captures
// under way, and *mode to how they did before.
goflat_status goflat_exchange_capture_mode(int *mode);

// goflat_relax lets this thread make calls that captures under way in other threads
// would forbid, and gives the mode to undo it with.
goflat_answer goflat_relax(void);
goflat_status goflat_unrelax(uintptr_t mode);

#endif
