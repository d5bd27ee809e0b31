// vmm.cc: reserved addresses, and memory that is mapped to them. As strict as CUDA:
// whole units of 2 MiB, mappings only inside one reservation and never over another,
// nothing to use before access is set, reservations freed whole and empty.
#include "state.h"

#include <sys/mman.h>

namespace {

const size_t unit = size_t(2) << 20;

struct Physical {
    int device;
    size_t bytes;
    int handles = 1, mappings = 0;
};

struct Mapping {
    size_t bytes;
    Physical *physical;
};

struct Addresses {
    std::map<uintptr_t, size_t> reserved;
    std::map<uintptr_t, Mapping> mapped;
    std::set<Physical *> physical;
    size_t capacity = 0; // bytes of all devices together; 0: as much as the host has
} vmm;

bool whole(size_t bytes)
{
    return bytes > 0 && bytes % unit == 0;
}

// within: is all of [at, at + bytes) inside one reservation?
bool within(uintptr_t at, size_t bytes)
{
    auto r = vmm.reserved.upper_bound(at);
    if (r == vmm.reserved.begin())
        return false;
    --r;
    return at - r->first <= r->second && bytes <= r->second - (at - r->first);
}

// touched: does a mapping share bytes with it?
bool touched(uintptr_t at, size_t bytes)
{
    auto m = vmm.mapped.lower_bound(at + bytes);
    return m != vmm.mapped.begin() && (--m)->first + m->second.bytes > at;
}

size_t created()
{
    size_t bytes = 0;
    for (Physical *p : vmm.physical)
        bytes += p->bytes;
    return bytes;
}

void drop_if_unused(Physical *p)
{
    if (p->handles || p->mappings)
        return;
    vmm.physical.erase(p);
    delete p;
}

Physical *physical(CUmemGenericAllocationHandle handle)
{
    auto p = reinterpret_cast<Physical *>(handle);
    return vmm.physical.count(p) && p->handles ? p : nullptr;
}

bool is_device(const CUmemLocation &l)
{
    return l.type == CU_MEM_LOCATION_TYPE_DEVICE && l.id >= 0 && size_t(l.id) < state().devices.size();
}

// mappings_of returns whether [at, at + bytes) is whole mappings, end to end.
bool mappings_of(uintptr_t at, size_t bytes)
{
    for (uintptr_t end = at + bytes; at < end; at += vmm.mapped[at].bytes)
        if (!vmm.mapped.count(at) || vmm.mapped[at].bytes > end - at)
            return false;
    return true;
}

} // namespace

extern "C" {

long long fakecuda_vmm(int kind)
{
    std::lock_guard<std::mutex> held(state().lock);
    size_t bytes = 0;
    switch (kind) {
    case FAKECUDA_RESERVATIONS:
        return vmm.reserved.size();
    case FAKECUDA_PHYSICAL:
        return created();
    default:
        for (auto &m : vmm.mapped)
            bytes += m.second.bytes;
        return bytes;
    }
}

void fakecuda_limit(size_t bytes)
{
    std::lock_guard<std::mutex> held(state().lock);
    vmm.capacity = bytes;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags)
{
    CALL(cuMemGetAllocationGranularity);
    if (!is_device(prop->location))
        return CUDA_ERROR_INVALID_DEVICE;
    *granularity = unit;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CALL(cuDeviceCanAccessPeer);
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags)
{
    CALL(cuMemAddressReserve);
    if (!whole(bytes) || flags || alignment > unit)
        return CUDA_ERROR_INVALID_VALUE;
    size_t more = bytes + unit;
    void *raw = mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t from = uintptr_t(raw), lo = (from + unit - 1) / unit * unit;
    if (lo > from)
        munmap(raw, lo - from);
    if (lo + bytes < from + more)
        munmap(reinterpret_cast<void *>(lo + bytes), from + more - lo - bytes);
    vmm.reserved[lo] = bytes;
    *at = lo;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    CALL(cuMemAddressFree);
    auto r = vmm.reserved.find(at);
    if (r == vmm.reserved.end() || r->second != bytes || touched(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(at), bytes);
    vmm.reserved.erase(r);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CALL(cuMemCreate);
    if (!whole(bytes) || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_device(prop->location))
        return CUDA_ERROR_INVALID_VALUE;
    if (vmm.capacity && created() + bytes > vmm.capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto p = new Physical{prop->location.id, bytes};
    vmm.physical.insert(p);
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(p);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CALL(cuMemRelease);
    Physical *p = physical(handle);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    p->handles--;
    drop_if_unused(p);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CALL(cuMemRetainAllocationHandle);
    auto m = vmm.mapped.upper_bound(uintptr_t(address));
    if (m == vmm.mapped.begin() || (--m)->first + m->second.bytes <= uintptr_t(address))
        return CUDA_ERROR_INVALID_VALUE;
    m->second.physical->handles++;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(m->second.physical);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CALL(cuMemMap);
    Physical *p = physical(handle);
    if (!p || offset || flags || bytes != p->bytes || at % unit || !within(at, bytes) || touched(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    p->mappings++;
    vmm.mapped[at] = {bytes, p};
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    CALL(cuMemSetAccess);
    if (!mappings_of(at, bytes) || count != 1 || !is_device(access->location))
        return CUDA_ERROR_INVALID_VALUE;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_NOT_SUPPORTED;
    mprotect(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE);
    for (uintptr_t m = at; m < at + bytes; m += vmm.mapped[m].bytes)
        if (vmm.mapped[m].physical->device == access->location.id) // peers may, but their kernels are not checked for it
            state().memory[m] = {vmm.mapped[m].bytes, access->location.id, nullptr, 0};
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    CALL(cuMemUnmap);
    if (bytes == 0 || !mappings_of(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    for (uintptr_t end = at + bytes; at < end;) {
        Mapping m = vmm.mapped[at];
        // What was there is gone, whoever maps the same memory again.
        mmap(reinterpret_cast<void *>(at), m.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        state().memory.erase(at);
        vmm.mapped.erase(at);
        m.physical->mappings--;
        drop_if_unused(m.physical);
        at += m.bytes;
    }
    return CUDA_SUCCESS;
}

} // extern "C"
