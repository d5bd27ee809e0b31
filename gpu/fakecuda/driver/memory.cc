// memory.cc: device memory is host memory between guard bytes.
#include "state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"

static const size_t alignment = 256; // cuMemAlloc promises so much
static const unsigned char guard_byte = 0xA5, fresh_byte = 0xCD;

static unsigned char *allocate(int device, size_t bytes)
{
    size_t whole = (bytes + 3 * alignment - 1) / alignment * alignment;
    auto raw = static_cast<unsigned char *>(aligned_alloc(alignment, whole));
    if (!raw)
        return nullptr;
    memset(raw, guard_byte, whole);
    memset(raw + alignment, fresh_byte, bytes);
    state().memory[uintptr_t(raw + alignment)] = {bytes, device, raw, 0};
    return raw + alignment;
}

static long long damaged(const Allocation &a)
{
    if (!a.raw)
        return 0;
    size_t whole = (a.bytes + 3 * alignment - 1) / alignment * alignment;
    long long n = 0;
    for (size_t i = 0; i < whole; i++)
        if (i < alignment || i >= alignment + a.bytes)
            n += a.raw[i] != guard_byte;
    return n;
}

// The allocation that holds all of some bytes, or nullptr.
static const std::pair<const uintptr_t, Allocation> *holder(uintptr_t from, size_t bytes)
{
    auto after = state().memory.upper_bound(from);
    if (after == state().memory.begin())
        return nullptr;
    auto &m = *--after;
    return from - m.first <= m.second.bytes && bytes <= m.second.bytes - (from - m.first) ? &m : nullptr;
}

static int running_device = -1;

void host_access(const void *memory, unsigned bytes, unsigned align)
{
    uintptr_t from = uintptr_t(memory);
    if (from % align)
        throw HostTrap{CUDA_ERROR_MISALIGNED_ADDRESS};
    auto m = holder(from, bytes);
    if (!m || m->second.device != running_device || from - m->first < m->second.forbidden)
        throw HostTrap{CUDA_ERROR_ILLEGAL_ADDRESS};
}

thread_local HostDim blockIdx, threadIdx, blockDim, gridDim;

static bool running_cooperatively = false;

void host_arrive(void *word)
{
    if (!running_cooperatively)
        throw HostTrap{CUDA_ERROR_LAUNCH_TIMEOUT};
    if (threadIdx.x == 0)
        host_store<unsigned>(word, host_load<unsigned>(word) + 1);
}

void host_await(void *word, unsigned arrivals)
{
    if (host_load<unsigned>(word) != arrivals)
        throw HostTrap{CUDA_ERROR_LAUNCH_TIMEOUT};
}

// In every second cooperative launch the threads run from the last to the first: the
// order between two barriers must not matter.
static void run_backwards(const Work &w, Phase phase)
{
    for (blockIdx.x = w.blocks[0]; blockIdx.x-- > 0;)
        for (threadIdx.x = w.threads[0]; threadIdx.x-- > 0;)
            phase(w.params.data());
}

static void run_phase(const Work &w, Phase phase)
{
    for (blockIdx.z = 0; blockIdx.z < w.blocks[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < w.blocks[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < w.blocks[0]; blockIdx.x++)
                for (threadIdx.z = 0; threadIdx.z < w.threads[2]; threadIdx.z++)
                    for (threadIdx.y = 0; threadIdx.y < w.threads[1]; threadIdx.y++)
                        for (threadIdx.x = 0; threadIdx.x < w.threads[0]; threadIdx.x++)
                            phase(w.params.data());
}

CUresult run_work(const Work &w)
{
    CUcontext context = w.function->module->context;
    running_device = context->device;
    gridDim = {w.blocks[0], w.blocks[1], w.blocks[2]};
    blockDim = {w.threads[0], w.threads[1], w.threads[2]};
    running_cooperatively = w.cooperative;
    static bool backwards = false;
    backwards = w.cooperative && !backwards;
    try {
        for (Phase phase : w.function->phases)
            if (backwards)
                run_backwards(w, phase);
            else
                run_phase(w, phase);
    } catch (const HostTrap &trap) { // seen by whoever waits for the device
        context->sticky = CUresult(trap.code);
    }
    return CUDA_SUCCESS;
}

extern "C" {

void *fakecuda_alloc(int device, size_t bytes)
{
    std::lock_guard<std::mutex> held(state().lock);
    if (device < 0 || size_t(device) >= state().devices.size())
        return nullptr;
    return allocate(device, bytes);
}

static bool release(uintptr_t memory)
{
    auto found = state().memory.find(memory);
    if (found == state().memory.end() || !found->second.raw)
        return false;
    free(found->second.raw);
    state().memory.erase(found);
    return true;
}

void fakecuda_free(void *memory)
{
    std::lock_guard<std::mutex> held(state().lock);
    release(uintptr_t(memory));
}

void fakecuda_forbid(void *memory, size_t bytes)
{
    std::lock_guard<std::mutex> held(state().lock);
    auto found = state().memory.find(uintptr_t(memory));
    if (found != state().memory.end())
        found->second.forbidden = bytes;
}

long long fakecuda_damaged(void)
{
    std::lock_guard<std::mutex> held(state().lock);
    long long n = 0;
    for (auto &m : state().memory)
        n += damaged(m.second);
    return n;
}

CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    CALL(cuMemAlloc);
    CUcontext context = this_thread.current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = unsafe())
        return code;
    unsigned char *p = allocate(context->device, bytes);
    *memory = CUdeviceptr(uintptr_t(p));
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr memory)
{
    CALL(cuMemFree);
    if (CUresult code = unsafe())
        return code;
    return memory == 0 || release(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// covered: does one allocation hold all of some bytes, or do mappings end to end?
static bool covered(uintptr_t from, size_t bytes)
{
    for (;;) {
        auto m = holder(from, 1);
        if (!m || m->second.raw)
            return holder(from, bytes);
        size_t here = m->first + m->second.bytes - from;
        if (bytes <= here)
            return true;
        from += here;
        bytes -= here;
    }
}

// copy checks the device side, or both, of a copy that waits for the device.
static CUresult copy(void *dst, const void *src, size_t bytes, bool device_dst, bool device_src)
{
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult code = unsafe())
        return code;
    if (this_thread.current()->sticky)
        return this_thread.current()->sticky;
    if ((device_dst && !covered(uintptr_t(dst), bytes)) || (device_src && !covered(uintptr_t(src), bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(dst, src, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    CALL(cuMemcpyHtoD);
    return copy(reinterpret_cast<void *>(dst), src, bytes, true, false);
}

CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    CALL(cuMemcpyDtoH);
    return copy(dst, reinterpret_cast<const void *>(src), bytes, false, true);
}

// Copies and fills that do not wait are done at once all the same. No test captures them.
static CUresult enqueued(CUdeviceptr dst, size_t bytes, CUstream stream)
{
    CUcontext context = context_of(stream);
    if (!context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_default(stream) && stream->capturing) {
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (context->sticky)
        return context->sticky;
    return holder(dst, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    CALL(cuMemcpyHtoDAsync);
    char line[64];
    snprintf(line, sizeof line, "cuMemcpyHtoDAsync stream %p", static_cast<void *>(stream));
    state().log.back() = line;
    if (CUresult code = enqueued(dst, bytes, stream))
        return code;
    memcpy(reinterpret_cast<void *>(dst), src, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t words, CUstream stream)
{
    CALL(cuMemsetD32Async);
    if (dst % 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = enqueued(dst, 4 * words, stream))
        return code;
    std::fill_n(reinterpret_cast<unsigned int *>(dst), words, value);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int)
{
    CALL(cuMemHostAlloc);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = unsafe())
        return code;
    *memory = malloc(bytes);
    if (!*memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    state().pinned[uintptr_t(*memory)] = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *memory)
{
    CALL(cuMemFreeHost);
    if (CUresult code = unsafe())
        return code;
    if (!state().pinned.erase(uintptr_t(memory)))
        return CUDA_ERROR_INVALID_VALUE;
    free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr memory)
{
    CALL(cuMemGetAddressRange);
    auto m = holder(memory, 1);
    if (!m)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = m->first;
    if (bytes)
        *bytes = m->second.bytes;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr memory)
{
    CALL(cuPointerGetAttribute);
    auto m = holder(memory, 1);
    if (!m)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr *>(value) = m->first;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<size_t *>(value) = m->second.bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

} // extern "C"
