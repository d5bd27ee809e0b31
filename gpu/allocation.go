package gpu

// #include "allocation.h"
import "C"

import (
	"fmt"
	"runtime"
)

// Allocation returns what an address on a device lies in, [lo, hi): the allocation of
// cudaMalloc, or for mapped memory (vmm) the reserved address range, of which parts may be
// unmapped. Kernels may work across all that is mapped of it; copies of the driver fail
// across two allocations although their addresses adjoin.
//
// An address that no device memory has is an [Error].
func Allocation(device int, addr uint64) (lo, hi uint64, vmm bool, err error) {
	on, err := use(device)
	if err != nil {
		return 0, 0, false, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(on.context)
	if err != nil {
		return 0, 0, false, err
	}
	a := C.goflat_allocation_of(C.uintptr_t(addr))
	if err := s.leave(check(a.status)); err != nil {
		return 0, 0, false, fmt.Errorf("allocation of %#x: %w", addr, err)
	}
	return uint64(a.lo), uint64(a.lo) + uint64(a.bytes), a.mapped != 0, nil
}
