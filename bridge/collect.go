package bridge

// #include "collecting.h"
import "C"

import (
	"errors"
	"runtime"
	"strconv"
	"strings"

	"github.com/goflat/goflat/gpu"
)

// This file is goflat.collect's way to package gpu, whose functions of the same names say what they do. Numbers come
// back as decimals with spaces between them where one does not suffice. Where the calling thread matters, the caller's
// thread is the one that torch calls the allocator on: a call from Python stays on its thread. Functions that have
// nothing to say return 0, since for those without a result gopy adds a parameter.

// CollectAlloc and CollectFree are the addresses of the allocator's two functions.
func CollectAlloc() int64 {
	alloc, _ := gpu.CollectFunctions()
	return int64(alloc)
}

// CollectFree is the other one.
func CollectFree() int64 {
	_, free := gpu.CollectFunctions()
	return int64(free)
}

// CollectSwitches appends to the list at the given address what a context calls as it is entered and left, as Python
// functions that enter no Go: see collecting.h. It returns how many, 0 where there is no memory for them.
func CollectSwitches(list int64) int64 {
	ready, reopen, goOn := gpu.CollectSwitches()
	return int64(C.gf_collect_switches(C.uint64_t(list), C.uintptr_t(ready), C.uintptr_t(reopen), C.uintptr_t(goOn)))
}

// CollectBegin opens a range, the thread's current one on the device, and returns its id.
func CollectBegin(device int64) (id int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	id, err = gpu.CollectBegin(int(device))
	return id, wire(collectError(err))
}

// collectError says what a device would need.
func collectError(err error) error {
	var unavailable *gpu.UnavailableError
	if err == nil || errors.As(err, &unavailable) {
		return deviceError(err)
	}
	return &wireError{"DEVICE", -1, -1, err.Error(), "a device with room for another range of addresses"}
}

// CollectEnd closes a range.
func CollectEnd(id int64) int64 {
	gpu.CollectEnd(id)
	return 0
}

// CollectIdle is 1 if a range is closed and nothing lies in it, or that use of it is over.
func CollectIdle(id int64) int64 {
	if gpu.CollectIdle(id) {
		return 1
	}
	return 0
}

// CollectKeep says whether memory that torch frees on this thread is kept for the next range; 0: no.
func CollectKeep(keep int64) int64 {
	gpu.CollectKeep(keep != 0)
	return 0
}

// CollectArm makes the thread's next allocation on the device its canary.
func CollectArm(device int64) int64 {
	gpu.CollectArm(int(device))
	return 0
}

// CollectArmed is 1 if the device has a canary, and ends the wait for one.
func CollectArmed(device int64) int64 {
	if gpu.CollectArmed(int(device)) {
		return 1
	}
	return 0
}

// CollectUse says that a stream uses outputs in the range that an address lies in.
func CollectUse(addr, stream int64) int64 {
	gpu.CollectUse(uint64(addr), uintptr(stream))
	return 0
}

// CollectTrim gives a device's free memory back to the driver.
func CollectTrim(device int64) int64 {
	gpu.CollectTrim(int(device))
	return 0
}

// CollectRange is the id of the range that an address lies in and the ends of its memory; empty if it lies in none.
func CollectRange(addr int64) string {
	id, lo, hi, ok := gpu.CollectRange(uint64(addr))
	if !ok {
		return ""
	}
	return numbers(id, int64(lo), int64(hi))
}

// CollectRoom is the beginnings and ends of a range's free memory; prepare it for work on a stream if not 0.
func CollectRoom(id, stream, prepare int64) string {
	return ends(gpu.CollectRoom(id, uintptr(stream), prepare != 0))
}

// CollectClaimed is the beginnings and ends of a range's claims.
func CollectClaimed(id int64) string { return ends(gpu.CollectClaimed(id)) }

// CollectClaim claims [lo, hi) and returns the address of the C function that ends the claim; 0 if that is not all
// memory of one range.
func CollectClaim(lo, hi int64) int64 {
	if !gpu.CollectClaim(uint64(lo), uint64(hi)) {
		return 0
	}
	_, unclaim := gpu.CollectClaims()
	return int64(unclaim)
}

// CollectUnclaim ends a claim.
func CollectUnclaim(lo, hi int64) int64 {
	gpu.CollectUnclaim(uint64(lo), uint64(hi))
	return 0
}

// CollectMemory is how many bytes a device's ranges have, how many of them torch counts, and how many are free.
func CollectMemory(device int64) string {
	m := gpu.CollectMemory(int(device))
	return numbers(m.Mapped, m.Segments, m.Free)
}

func numbers(all ...int64) string {
	var text strings.Builder
	for i, n := range all {
		if i > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(strconv.FormatInt(n, 10))
	}
	return text.String()
}

func ends(spans []gpu.Span) string {
	all := make([]int64, 0, 2*len(spans))
	for _, s := range spans {
		all = append(all, int64(s.Lo), int64(s.Hi))
	}
	return numbers(all...)
}
