//go:build !systemcuda

#define _GNU_SOURCE
#include "open.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <cuda.h>

#define HIDDEN __attribute__((visibility("hidden")))

// One slot a trampoline, and the symbols' names in the same order, "\0" after each
// and one more at the end (both in trampolines_*.S).
extern HIDDEN void *goflat_libcuda_slots[];
extern HIDDEN const char goflat_libcuda_names[];

// What every slot holds before the driver is open. It ignores its arguments, which
// all calling conventions in use here permit.
HIDDEN CUresult goflat_libcuda_closed(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult missing(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

// gorgonia.org/cu calls this from init(). It must neither fail nor touch the driver.
HIDDEN CUresult cuInit(unsigned int flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

static void fill_slots(void *library)
{
	size_t i = 0;
	for (const char *name = goflat_libcuda_names; *name; name += strlen(name) + 1) {
		void *function = dlsym(library, name);
		goflat_libcuda_slots[i++] = function ? function : (void *)missing;
	}
}

// copy_name puts the driver's name of a code, as "CUDA_ERROR_NO_DEVICE", into name.
static void copy_name(void *library, int code, char *name, size_t name_bytes)
{
	CUresult (*get_name)(CUresult, const char **) =
		(CUresult(*)(CUresult, const char **))dlsym(library, "cuGetErrorName");
	const char *text = NULL;
	if (get_name)
		get_name(code, &text);
	snprintf(name, name_bytes, "%s", text ? text : "");
}

// The library is never closed: drivers do not support it.
enum goflat_stage goflat_libcuda_open(int *code, char *why, size_t why_bytes)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *text = dlerror();
		snprintf(why, why_bytes, "%s", text ? text : "");
		return GOFLAT_NO_LIBRARY;
	}
	CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))dlsym(library, "cuInit");
	if (!init)
		return GOFLAT_NOT_CUDA;
	*code = init(0);
	if (*code != CUDA_SUCCESS) {
		copy_name(library, *code, why, why_bytes);
		return GOFLAT_INIT_FAILED;
	}
	fill_slots(library);
	return GOFLAT_OPENED;
}
