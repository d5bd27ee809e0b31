#include "allocation.h"

// is_mapped: only memory of cuMemMap has a handle that can be retained. The driver says
// nothing else that tells it from other memory; that it has none is no error.
static int is_mapped(CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle;
	if (cuMemRetainAllocationHandle(&handle, (void *)address) != CUDA_SUCCESS)
		return 0;
	cuMemRelease(handle);
	return 1;
}

goflat_allocation goflat_allocation_of(uintptr_t address)
{
	goflat_allocation a = {{CUDA_SUCCESS, "cuPointerGetAttribute"}, 0, 0, 0};
	CUdeviceptr lo = 0;
	a.status.code = cuPointerGetAttribute(&lo, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)address);
	if (a.status.code == CUDA_SUCCESS)
		a.status.code = cuPointerGetAttribute(&a.bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)address);
	if (a.status.code != CUDA_SUCCESS)
		return a;
	a.lo = (uintptr_t)lo;
	a.mapped = is_mapped((CUdeviceptr)address);
	return a;
}
