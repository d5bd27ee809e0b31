//go:build systemcuda

#include "open.h"

#include <stdio.h>

#include <cuda.h>

enum goflat_stage goflat_libcuda_open(int *code, char *why, size_t why_bytes)
{
	const char *name = NULL;
	*code = cuInit(0);
	if (*code == CUDA_SUCCESS)
		return GOFLAT_OPENED;
	cuGetErrorName(*code, &name);
	snprintf(why, why_bytes, "%s", name ? name : "");
	return GOFLAT_INIT_FAILED;
}
