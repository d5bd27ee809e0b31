// allocation.h: which allocation an address lies in.
#ifndef GOFLAT_GPU_ALLOCATION_H
#define GOFLAT_GPU_ALLOCATION_H

#include "launch.h"

typedef struct {
	goflat_status status;
	uintptr_t lo;
	size_t bytes;
	int mapped; // of cuMemMap
} goflat_allocation;

goflat_allocation goflat_allocation_of(uintptr_t address);

#endif
