// open.h: the C side of Open, shared by the lazy and the systemcuda build.
#ifndef GOFLAT_LIBCUDA_OPEN_H
#define GOFLAT_LIBCUDA_OPEN_H

#include <stddef.h>

enum goflat_stage {
	GOFLAT_OPENED,      // cuInit succeeded, the slots are filled
	GOFLAT_NO_LIBRARY,  // dlopen failed, *why holds dlerror's text
	GOFLAT_NOT_CUDA,    // the library has no cuInit
	GOFLAT_INIT_FAILED, // cuInit failed, *code holds its CUresult, *why its name
};

// goflat_libcuda_open loads the driver and calls cuInit. Call it once.
enum goflat_stage goflat_libcuda_open(int *code, char *why, size_t why_bytes);

#endif
