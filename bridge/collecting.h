// What a context of goflat.collect calls as it is entered and left, between producers whose speed counts. As Python
// functions in C they cost 0.1 µs; a call through Go costs 4 µs where its code is in no cache (H200).
#ifndef GOFLAT_COLLECTING_H
#define GOFLAT_COLLECTING_H

#include <stdint.h>

// gf_collect_switches takes C functions of gpu.CollectSwitches, and appends to the list:
//
//	ready(device) -> whether the device was short of memory; memory that torch frees on this thread is kept from now on
//	reopen(device) -> id of a new range, the thread's current one; 0: bridge_CollectBegin says why not
//	go_on(device, id, next) -> whether a canary is needed, now that the range is closed and next is current
//
// It returns how many there are, 0 where there is no memory for them.
int gf_collect_switches(uint64_t list, uintptr_t ready, uintptr_t reopen, uintptr_t go_on);

#endif
