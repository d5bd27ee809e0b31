// context.cc: initialisation, devices, contexts and error texts.
#include "state.h"

#include <cstdlib>
#include <cstring>

extern "C" {

CUresult cuInit(unsigned int flags)
{
    Entry entry("cuInit", true);
    if (entry.code() != CUDA_SUCCESS)
        return entry.code();
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (state().devices.empty() || (visible && !*visible))
        return CUDA_ERROR_NO_DEVICE;
    state().initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    Entry entry("cuDriverGetVersion", true);
    if (entry.code() == CUDA_SUCCESS)
        *version = state().driver_version;
    return entry.code();
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

// The two text functions are no calls: no test wants an error's text to fail.
CUresult cuGetErrorName(CUresult code, const char **name)
{
    *name = nullptr;
    for (auto &e : errors)
        if (e.code == code)
            *name = e.name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = nullptr;
    for (auto &e : errors)
        if (e.code == code)
            *text = e.text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    CALL(cuDeviceGetCount);
    *count = int(state().devices.size());
    return CUDA_SUCCESS;
}

static bool exists(int device)
{
    return device >= 0 && size_t(device) < state().devices.size();
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CALL(cuDeviceGet);
    if (!exists(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    CALL(cuDeviceGetName);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    strncpy(name, "Fake CUDA device", bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    CALL(cuDeviceTotalMem);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = size_t(16) << 30;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CALL(cuDeviceGetAttribute);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = fake_multiprocessors;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CALL(cuDevicePrimaryCtxRetain);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUctx_st &c = state().devices[device];
    if (c.retains == 0)
        if (CUresult code = unsafe())
            return code;
    c.retains++;
    *context = &c;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CALL(cuDevicePrimaryCtxRelease);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUctx_st &c = state().devices[device];
    if (c.retains == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--c.retains == 0)
        destroy_modules(&c);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CALL(cuDevicePrimaryCtxGetState);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = state().devices[device].retains > 0;
    return CUDA_SUCCESS;
}

static bool usable(CUcontext context)
{
    for (CUctx_st &c : state().devices)
        if (&c == context)
            return c.retains > 0;
    return state().contexts.count(context);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    CALL(cuCtxCreate);
    if (!exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~unsigned(CU_CTX_FLAGS_MASK))
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = unsafe())
        return code;
    *context = new CUctx_st;
    (*context)->device = device;
    state().contexts.insert(*context);
    this_thread.stack.push_back(*context);
    return CUDA_SUCCESS;
}

// The object stays: the context may still be current on other threads, whose calls then fail.
CUresult cuCtxDestroy(CUcontext context)
{
    CALL(cuCtxDestroy);
    if (!state().contexts.erase(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (this_thread.current() == context)
        this_thread.stack.pop_back();
    destroy_modules(context);
    context->sticky = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CALL(cuCtxGetCurrent);
    *context = this_thread.current();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CALL(cuCtxSetCurrent);
    if (context && !usable(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!this_thread.stack.empty())
        this_thread.stack.pop_back();
    if (context)
        this_thread.stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    CALL(cuCtxPushCurrent);
    if (!usable(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    this_thread.stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    CALL(cuCtxPopCurrent);
    if (this_thread.stack.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = this_thread.current();
    this_thread.stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CALL(cuCtxGetDevice);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = this_thread.current()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    CALL(cuCtxSynchronize);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult code = unsafe())
        return code;
    return this_thread.current()->sticky;
}

} // extern "C"
