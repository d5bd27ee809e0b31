#include "permute.h"

static goflat_status status(const char *call, CUresult code)
{
	return (goflat_status){code, call};
}

static goflat_answer answer(const char *call, CUresult code, uintptr_t value)
{
	return (goflat_answer){{code, call}, value};
}

goflat_answer goflat_is_capturing(uintptr_t stream)
{
	CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult code = cuStreamIsCapturing((CUstream)stream, &capturing);
	return answer("cuStreamIsCapturing", code, capturing != CU_STREAM_CAPTURE_STATUS_NONE);
}

goflat_status goflat_cooperate(uintptr_t function, uint32_t blocks, uint32_t threads, uintptr_t stream, const void *parameter)
{
	void *parameters[1] = {(void *)parameter};
	CUresult code = cuLaunchCooperativeKernel((CUfunction)function, blocks, 1, 1, threads, 1, 1, 0, (CUstream)stream, parameters);
	return status("cuLaunchCooperativeKernel", code);
}

goflat_status goflat_zero_word(uintptr_t word, uintptr_t stream)
{
	return status("cuMemsetD32Async", cuMemsetD32Async((CUdeviceptr)word, 0, 1, (CUstream)stream));
}

goflat_status goflat_upload(uintptr_t to, uintptr_t pinned, size_t bytes, uintptr_t stream)
{
	CUresult code = cuMemcpyHtoDAsync((CUdeviceptr)to, (const void *)pinned, bytes, (CUstream)stream);
	return status("cuMemcpyHtoDAsync", code);
}

goflat_answer goflat_resident(uintptr_t function, uint32_t threads)
{
	int blocks = 0;
	CUresult code = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (CUfunction)function, (int)threads, 0);
	return answer("cuOccupancyMaxActiveBlocksPerMultiprocessor", code, (uintptr_t)blocks);
}

goflat_answer goflat_device_alloc(size_t bytes)
{
	CUdeviceptr memory = 0;
	CUresult code = cuMemAlloc(&memory, bytes);
	return answer("cuMemAlloc", code, (uintptr_t)memory);
}

goflat_status goflat_device_free(uintptr_t memory)
{
	return status("cuMemFree", cuMemFree((CUdeviceptr)memory));
}

goflat_answer goflat_pinned_alloc(size_t bytes)
{
	void *memory = NULL;
	CUresult code = cuMemHostAlloc(&memory, bytes, 0);
	return answer("cuMemHostAlloc", code, (uintptr_t)memory);
}

goflat_status goflat_pinned_free(uintptr_t memory)
{
	return status("cuMemFreeHost", cuMemFreeHost((void *)memory));
}

goflat_answer goflat_event_new(void)
{
	CUevent event = NULL;
	CUresult code = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	return answer("cuEventCreate", code, (uintptr_t)event);
}

goflat_status goflat_event_free(uintptr_t event)
{
	return status("cuEventDestroy", cuEventDestroy((CUevent)event));
}

goflat_status goflat_event_record(uintptr_t event, uintptr_t stream)
{
	return status("cuEventRecord", cuEventRecord((CUevent)event, (CUstream)stream));
}

goflat_answer goflat_event_done(uintptr_t event)
{
	CUresult code = cuEventQuery((CUevent)event);
	if (code == CUDA_ERROR_NOT_READY)
		return answer("cuEventQuery", CUDA_SUCCESS, 0);
	return answer("cuEventQuery", code, 1);
}

goflat_status goflat_event_wait(uintptr_t event)
{
	return status("cuEventSynchronize", cuEventSynchronize((CUevent)event));
}

goflat_status goflat_stream_wait(uintptr_t stream, uintptr_t event)
{
	return status("cuStreamWaitEvent", cuStreamWaitEvent((CUstream)stream, (CUevent)event, 0));
}

goflat_answer goflat_stream_new(void)
{
	CUstream stream = NULL;
	CUresult code = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	return answer("cuStreamCreate", code, (uintptr_t)stream);
}

goflat_status goflat_stream_free(uintptr_t stream)
{
	return status("cuStreamDestroy", cuStreamDestroy((CUstream)stream));
}
