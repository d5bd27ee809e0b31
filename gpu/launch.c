#include "launch.h"

static goflat_status status(const char *call, CUresult code)
{
	return (goflat_status){code, call};
}

goflat_scope goflat_enter(uintptr_t context)
{
	goflat_scope scope = {{CUDA_SUCCESS, "cuCtxGetCurrent"}, 0, 0};
	CUcontext current = NULL;
	scope.status.code = cuCtxGetCurrent(&current);
	scope.previous = (uintptr_t)current;
	if (scope.status.code != CUDA_SUCCESS || scope.previous == context)
		return scope;
	scope.status = status("cuCtxPushCurrent", cuCtxPushCurrent((CUcontext)context));
	scope.entered = scope.status.code == CUDA_SUCCESS;
	return scope;
}

// Popping may answer with the failure of earlier work on the device, which leaves open
// whether it popped. Either way the previous context must be current afterwards.
goflat_status goflat_leave(goflat_scope scope)
{
	CUcontext popped;
	if (!scope.entered || cuCtxPopCurrent(&popped) == CUDA_SUCCESS)
		return status("cuCtxPopCurrent", CUDA_SUCCESS);
	return status("cuCtxSetCurrent", cuCtxSetCurrent((CUcontext)scope.previous));
}

goflat_status goflat_launch(uintptr_t function, uint32_t blocks, uint32_t threads, uintptr_t stream, const void *parameter)
{
	void *parameters[1] = {(void *)parameter};
	CUresult code = cuLaunchKernel((CUfunction)function, blocks, 1, 1, threads, 1, 1, 0, (CUstream)stream, parameters, NULL);
	return status("cuLaunchKernel", code);
}

goflat_status goflat_exchange_capture_mode(int *mode)
{
	CUstreamCaptureMode exchanged = (CUstreamCaptureMode)*mode;
	CUresult code = cuThreadExchangeStreamCaptureMode(&exchanged);
	*mode = (int)exchanged;
	return status("cuThreadExchangeStreamCaptureMode", code);
}

goflat_answer goflat_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	goflat_status s = goflat_exchange_capture_mode(&mode);
	return (goflat_answer){s, (uintptr_t)mode};
}

goflat_status goflat_unrelax(uintptr_t mode)
{
	int before = (int)mode;
	return goflat_exchange_capture_mode(&before);
}
