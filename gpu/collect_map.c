#include "collect_map.h"

#include <stdlib.h>

// A mapping call takes about 70 µs (H200), so chunks are large; they are what goes back to
// the driver, so they are not larger. No small one is left over at the end.
static const uint64_t chunk_bytes = (uint64_t)64 << 20, most_chunk = (uint64_t)96 << 20;

static goflat_status status(const char *call, CUresult code)
{
	return (goflat_status){code, call};
}

static CUmemAllocationProp pinned_on(int device)
{
	int rdma = 0;
	CUmemAllocationProp p = {0};
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = device;
	// As memory of cudaMalloc: network cards may read it where they can.
	if (cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) == CUDA_SUCCESS)
		p.allocFlags.gpuDirectRDMACapable = rdma != 0;
	return p;
}

goflat_range *goflat_map_reserve(int device, uintptr_t context, uint64_t bytes, goflat_status *s)
{
	CUmemAllocationProp p = pinned_on(device);
	size_t granularity = 0;
	CUdeviceptr lo = 0;
	*s = status("cuMemGetAllocationGranularity",
		    cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	if (s->code == CUDA_SUCCESS && (!granularity || goflat_unit % granularity))
		s->code = CUDA_ERROR_NOT_SUPPORTED;
	if (s->code != CUDA_SUCCESS)
		return NULL;
	bytes = goflat_round_up(bytes);
	*s = status("cuMemAddressReserve", cuMemAddressReserve(&lo, bytes, goflat_unit, 0, 0));
	if (s->code != CUDA_SUCCESS)
		return NULL;
	goflat_range *r = calloc(1, sizeof *r);
	if (!r) {
		cuMemAddressFree(lo, bytes);
		*s = status("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY);
		return NULL;
	}
	r->device = device;
	r->context = context;
	r->lo = lo;
	r->hi = lo + bytes;
	return r;
}

int goflat_map_release(goflat_range *r)
{
	if (cuMemAddressFree(r->lo, r->hi - r->lo) != CUDA_SUCCESS)
		return 0;
	free(r->chunks.at);
	free(r->segments.at);
	free(r->claims.at);
	free(r);
	return 1;
}

// allow lets the device use mapped memory, and those that reach it as peers: torch turns
// peer access on for memory of cudaMalloc only.
static CUresult allow(int device, uint64_t lo, uint64_t bytes)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult code = cuMemSetAccess(lo, bytes, &access, 1);
	int devices = 0;
	if (code != CUDA_SUCCESS || cuDeviceGetCount(&devices) != CUDA_SUCCESS)
		return code;
	for (int peer = 0; peer < devices; peer++) {
		int can = 0;
		access.location.id = peer;
		if (peer != device && cuDeviceCanAccessPeer(&can, peer, device) == CUDA_SUCCESS && can)
			cuMemSetAccess(lo, bytes, &access, 1);
	}
	return code;
}

// map_chunk maps new memory. It lives as long as the mapping, so its handle goes at once.
static int map_chunk(goflat_range *r, goflat_span chunk)
{
	CUmemAllocationProp p = pinned_on(r->device);
	CUmemGenericAllocationHandle memory;
	uint64_t bytes = chunk.hi - chunk.lo;
	if (cuMemCreate(&memory, bytes, &p, 0) != CUDA_SUCCESS)
		return 0;
	CUresult code = cuMemMap(chunk.lo, bytes, 0, memory, 0);
	if (cuMemRelease(memory) != CUDA_SUCCESS) // an error of earlier work: not about the handle
		cuMemRelease(memory);
	if (code != CUDA_SUCCESS)
		return 0;
	if (allow(r->device, chunk.lo, bytes) == CUDA_SUCCESS && goflat_spans_add(&r->chunks, chunk))
		return 1;
	cuMemUnmap(chunk.lo, bytes);
	return 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int goflat_map_cover(goflat_range *r, uint64_t lo, uint64_t hi)
{
	for (lo = goflat_range_mapped(r, lo); lo < hi; lo = goflat_range_mapped(r, lo)) {
		size_t next = goflat_spans_after(&r->chunks, lo);
		uint64_t end = next < r->chunks.len ? least(hi, r->chunks.at[next].lo) : hi;
		if (end - lo > most_chunk)
			end = lo + chunk_bytes;
		if (!map_chunk(r, (goflat_span){lo, end}))
			return 0;
	}
	return 1;
}

void goflat_map_trim(goflat_range *r)
{
	for (size_t i = r->chunks.len; i-- > 0;) {
		goflat_span chunk = r->chunks.at[i], busy;
		if (goflat_range_busy(r, chunk.lo, &busy) && busy.lo < chunk.hi)
			continue;
		if (!goflat_map_idle(r))
			return;
		if (cuMemUnmap(chunk.lo, chunk.hi - chunk.lo) == CUDA_SUCCESS)
			goflat_spans_remove(&r->chunks, i);
	}
}

// wait waits for a stream, unless it is being captured: then that would end the capture.
// A stream that is gone is waited for with the whole device.
static int wait(uintptr_t stream)
{
	CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	if ((CUstream)stream == CU_STREAM_PER_THREAD) // another thread's, perhaps
		return cuCtxSynchronize() == CUDA_SUCCESS;
	CUresult code = cuStreamIsCapturing((CUstream)stream, &capturing);
	if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || capturing != CU_STREAM_CAPTURE_STATUS_NONE)
		return 0;
	if (code == CUDA_SUCCESS && cuStreamSynchronize((CUstream)stream) == CUDA_SUCCESS)
		return 1;
	return cuCtxSynchronize() == CUDA_SUCCESS;
}

// wait_all waits for the streams of a set but one, and takes them out of it.
static int wait_all(goflat_streams *s, const uintptr_t *but)
{
	if (s->all && cuCtxSynchronize() != CUDA_SUCCESS)
		return 0;
	if (s->all)
		s->len = 0;
	s->all = 0;
	for (size_t i = s->len; i-- > 0;) {
		if (but && s->at[i] == *but)
			continue;
		if (!wait(s->at[i]))
			return 0;
		s->at[i] = s->at[--s->len];
	}
	return 1;
}

// in_context waits in the range's context, and lets other threads' captures be.
static int in_context(goflat_range *r, const uintptr_t *but)
{
	goflat_scope scope = goflat_enter(r->context);
	if (scope.status.code != CUDA_SUCCESS)
		return 0;
	goflat_answer mode = goflat_relax();
	int done = mode.status.code == CUDA_SUCCESS && wait_all(&r->past, but);
	if (mode.status.code == CUDA_SUCCESS)
		goflat_unrelax(mode.value);
	goflat_leave(scope);
	return done;
}

int goflat_map_idle(goflat_range *r)
{
	return (!r->past.len && !r->past.all) || in_context(r, NULL);
}

int goflat_map_settle(goflat_range *r, uintptr_t stream)
{
	int others = r->past.all;
	for (size_t i = 0; i < r->past.len; i++)
		others |= r->past.at[i] != stream;
	return !others || in_context(r, &stream);
}
