// host.h: CUDA's words for the host's compiler, so that gpu/kernels/*.cu compile as
// C++ and run thread by thread. Included by common.cuh.
#pragma once

#include <cstring>
#include <vector>

#include "hostfloat.h"

#define DEVICE static inline
#define KERNEL(threads, blocks) extern "C" void
#define UNROLL
#define ROLLED
#define PARAMETER(type) const type &

struct HostDim {
    unsigned x = 1, y = 1, z = 1;
};

extern thread_local HostDim blockIdx, threadIdx, blockDim, gridDim;

// Thrown by an access that the hardware would trap on, with its CUresult.
struct HostTrap {
    int code;
};

// host_access traps unless device memory of the running device holds all the bytes,
// and unless the address is a multiple of align.
void host_access(const void *memory, unsigned bytes, unsigned align);

// host_arrive and host_await are the two halves of a barrier of the grid, in two phases.
// They trap unless the launch is cooperative and the word comes to what it should.
void host_arrive(void *word);
void host_await(void *word, unsigned arrivals);

template <typename T> inline T host_load(const void *from)
{
    host_access(from, sizeof(T), sizeof(T));
    T v;
    std::memcpy(&v, from, sizeof(T));
    return v;
}

template <typename T> inline void host_store(void *to, T v)
{
    host_access(to, sizeof(T), sizeof(T));
    std::memcpy(to, &v, sizeof(T));
}
