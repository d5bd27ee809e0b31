package gpu

// #include "collect.h"
//
// static uintptr_t collect_alloc(void) { return (uintptr_t)goflat_collect_alloc; }
// static uintptr_t collect_free(void) { return (uintptr_t)goflat_collect_free; }
// static uintptr_t collect_claim(void) { return (uintptr_t)goflat_collect_claim; }
// static uintptr_t collect_unclaim(void) { return (uintptr_t)goflat_collect_unclaim; }
// static uintptr_t collect_ready(void) { return (uintptr_t)goflat_collect_ready; }
// static uintptr_t collect_reopen(void) { return (uintptr_t)goflat_collect_reopen; }
// static uintptr_t collect_go_on(void) { return (uintptr_t)goflat_collect_go_on; }
import "C"

import (
	"fmt"
	"sync"
)

// A Span is addresses [Lo, Hi).
type Span struct{ Lo, Hi uint64 }

// CollectFunctions returns the addresses of two C functions, for
// torch._C._cuda_customAllocator: alloc takes memory from the calling thread's range on
// the device, see [CollectBegin], and free gives it back. See collect.h for when it then
// goes back to the driver. Both may be called on any thread.
func CollectFunctions() (alloc, free uintptr) {
	return uintptr(C.collect_alloc()), uintptr(C.collect_free())
}

// CollectClaims returns the addresses of two C functions, int claim(uint64_t lo,
// uint64_t hi) and void unclaim(uint64_t lo, uint64_t hi): between them, memory of a
// collected range stays mapped, whatever torch frees. claim returns 0 where not all of
// it is mapped memory of one range. Both may be called on any thread, also by deleters.
func CollectClaims() (claim, unclaim uintptr) {
	return uintptr(C.collect_claim()), uintptr(C.collect_unclaim())
}

// CollectSwitches returns the addresses of three C functions for callers to whom the way
// through Go is too long: between other work it takes 4 µs a call (H200).
//
//	int ready(int device): CollectKeep(true), then CollectPressed
//	int64_t reopen(int device): CollectBegin's id, 0 unless that has succeeded before and does now
//	int go_on(int device, int64_t id, int64_t next): CollectEnd, CollectSelect, and
//	    if next is 0, whether there is free memory and no canary
func CollectSwitches() (ready, reopen, goOn uintptr) {
	return uintptr(C.collect_ready()), uintptr(C.collect_reopen()), uintptr(C.collect_go_on())
}

// CollectBegin opens a range on a device and makes it the current one of the calling
// thread, which the goroutine must not leave before [CollectEnd]. A range has as many
// addresses as the device has memory; one that nothing lies in is used again, with the
// memory that it has. The id names this use of it. It ends [CollectKeep].
func CollectBegin(device int) (id int64, err error) {
	on, err := use(device)
	if err != nil {
		return 0, err
	}
	bytes, err := rangeBytes(on)
	if err != nil {
		return 0, err
	}
	var c C.int64_t
	if err := check(C.goflat_collect_begin(C.int(device), C.uintptr_t(on.context), C.uint64_t(bytes), &c)); err != nil {
		return 0, fmt.Errorf("collect on device %d: %w", device, err)
	}
	return int64(c), nil
}

var totals sync.Map // *loaded -> uint64, the bytes of its device

// rangeBytes returns how many addresses a range on a device takes.
func rangeBytes(on *loaded) (uint64, error) {
	if total, ok := totals.Load(on); ok {
		return total.(uint64), nil
	}
	bytes, err := on.device.TotalMem()
	if err != nil {
		return 0, failure("cuDeviceTotalMem", err)
	}
	totals.Store(on, uint64(bytes))
	return uint64(bytes), nil
}

// CollectSelect makes an open range the calling thread's current one on its device; 0
// leaves it without one.
func CollectSelect(device int, id int64) { C.goflat_collect_select(C.int(device), C.int64_t(id)) }

// CollectEnd closes a range: nothing is allocated there any more, and what lies there
// stays.
func CollectEnd(id int64) { C.goflat_collect_end(C.int64_t(id)) }

// CollectIdle reports whether a range is closed and nothing lies in it, or that use of it
// is over.
func CollectIdle(id int64) bool { return C.goflat_collect_idle(C.int64_t(id)) != 0 }

// CollectKeep says whether memory that torch frees on the calling thread is kept for the
// next range, or means that torch gives its cache back. The latter is so at first.
func CollectKeep(keep bool) {
	on := C.int(0)
	if keep {
		on = 1
	}
	C.goflat_collect_keep(on)
}

// CollectArm makes the calling thread's next allocation on a device its canary: an
// address without memory, which torch frees when it gives its cache back.
func CollectArm(device int) { C.goflat_collect_arm(C.int(device)) }

// CollectArmed reports whether the device has a canary, and ends the wait for its
// allocation.
func CollectArmed(device int) bool { return C.goflat_collect_armed(C.int(device)) != 0 }

// CollectPressed reports whether a device was short of memory since the last call: torch
// gave its cache back, or the driver refused memory.
func CollectPressed(device int) bool { return C.goflat_collect_pressed(C.int(device)) != 0 }

// CollectClaim is claim of [CollectClaims].
func CollectClaim(lo, hi uint64) bool {
	return C.goflat_collect_claim(C.uint64_t(lo), C.uint64_t(hi)) != 0
}

// CollectUnclaim is unclaim of [CollectClaims].
func CollectUnclaim(lo, hi uint64) {
	C.goflat_collect_unclaim(C.uint64_t(lo), C.uint64_t(hi))
}

// CollectUse says that a stream uses outputs in the range that an address lies in: their
// memory is not used for anything else before it is done.
func CollectUse(addr uint64, stream uintptr) {
	C.goflat_collect_use(C.uint64_t(addr), C.uintptr_t(stream))
}

// CollectTrim gives a device's free memory back to the driver.
func CollectTrim(device int) { C.goflat_collect_trim(C.int(device)) }

// CollectRange returns the id of the range that an address lies in and the ends of its
// mapped memory, in which there may be holes. hi is where its slack ends.
func CollectRange(addr uint64) (id int64, lo, hi uint64, ok bool) {
	var cid C.int64_t
	var clo, chi C.uint64_t
	ok = C.goflat_collect_range(C.uint64_t(addr), &cid, &clo, &chi) != 0
	return int64(cid), uint64(clo), uint64(chi), ok
}

// CollectRoom returns the mapped memory of a range that lies under no segment of torch's
// and no claim, in the order of addresses. To use it on a stream, prepare: that waits for
// what other streams did there, and maps slack where there is too little. An open range
// has no such room. Claim it before anything else can.
func CollectRoom(id int64, stream uintptr, prepare bool) []Span {
	on := C.int(0)
	if prepare {
		on = 1
	}
	return spans(func(at *C.goflat_span, n C.size_t) C.size_t {
		return C.goflat_collect_room(C.int64_t(id), C.uintptr_t(stream), on, at, n)
	})
}

// CollectClaimed returns the claims in a range, in the order of their starts.
func CollectClaimed(id int64) []Span {
	return spans(func(at *C.goflat_span, n C.size_t) C.size_t {
		return C.goflat_collect_claims(C.int64_t(id), at, n)
	})
}

// spans grows a buffer until what fill writes fits into it.
func spans(fill func(at *C.goflat_span, n C.size_t) C.size_t) []Span {
	buffer := make([]C.goflat_span, 64)
	n := int(fill(&buffer[0], C.size_t(len(buffer))))
	for n > len(buffer) {
		buffer = make([]C.goflat_span, 2*n)
		n = int(fill(&buffer[0], C.size_t(len(buffer))))
	}
	all := make([]Span, n)
	for i, s := range buffer[:n] {
		all[i] = Span{uint64(s.lo), uint64(s.hi)}
	}
	return all
}

// CollectBytes is memory of ranges, in bytes.
type CollectBytes struct {
	Mapped   int64 // from the driver
	Segments int64 // counted by torch, too
	Free     int64 // would go back to the driver
}

// CollectMemory returns how much memory the ranges of a device have.
func CollectMemory(device int) CollectBytes {
	c := C.goflat_collect_bytes(C.int(device))
	return CollectBytes{int64(c.mapped), int64(c.segments), int64(c.free)}
}
