package bridge

// #include "own.h"
// #include "adopt.h"
import "C"

import "runtime"

// LearnOwnership takes the address of a dict made by goflat._ownership: tensors in known states, and what to ask of
// Python. It returns 1 if counts can be read in place, 0 if every entry has to be asked about.
func LearnOwnership(probes int64) int64 {
	return int64(C.gf_learn_ownership(C.uint64_t(probes)))
}

// Survey says for each object of the list at address grid who else uses its memory, in one gf_own (own.h) each, at
// address records. expected is how many Python references to each object are accounted for: those of grid and of the
// caller's containers. It returns how many entries may be adopted. Nothing is changed, nothing kept.
func Survey(grid, expected, records int64) (adoptable int64, err error) {
	return parked(func() C.int64_t {
		return C.gf_survey_list(C.uint64_t(grid), C.int64_t(expected), C.uint64_t(records))
	})
}

// Changed looks as RunStep does, and moves nothing.
func Changed(alone int64) (changed int64, err error) { return changedEntry(alone) }

// changedEntry is the number, from 1, of an entry that somebody has got hold of; see RunStep.
func changedEntry(alone int64) (int64, error) {
	a := wordsAt(alone, 4)
	return parked(func() C.int64_t {
		return C.gf_changed(C.uint64_t(a[0]), C.int64_t(a[1]+1), C.uint64_t(a[2]), C.uint64_t(a[3]))
	})
}

// Adopt appends to the list result a tensor of the given shape (a tuple) over memory at address, of like's dtype and
// device, which keeps the storages of the entries in the list under alive. It returns 1 if that is foreign memory to
// torch, 0 if the output lies inside one of torch's own storages. unclaim, if not 0, is the address of a C function
// that is told lo and hi once that memory has been given back, on any thread; at once where 0 is returned. On an error it is
// not called.
func Adopt(address, shape, like, under, lo, hi, unclaim, result int64) (foreign int64, err error) {
	return parked(func() C.int64_t {
		return C.gf_adopt_into(C.uint64_t(address), C.uint64_t(shape), C.uint64_t(like), C.uint64_t(under),
			C.uint64_t(lo), C.uint64_t(hi), C.uint64_t(unclaim), C.uint64_t(result))
	})
}

// Parts appends to the list at the given address one tensor per storage under the adopted output that the tensor with
// id tensor is, or is a view of. It returns how many; 0 for every other tensor.
func Parts(tensor, list int64) (count int64, err error) {
	return parked(func() C.int64_t {
		return C.gf_adopted_parts(C.uint64_t(tensor), C.uint64_t(list))
	})
}

// LiveAdopted is the number of adopted outputs over foreign memory that are alive.
func LiveAdopted() int64 { return int64(C.gf_live_adopted()) }

// parked runs call, which returns -1 where it has left an exception for TakeException on this thread.
func parked(call func() C.int64_t) (result int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	result = int64(call())
	if result < 0 {
		return result, &wireError{code: "PYTHON", key: -1, batch: -1}
	}
	return result, nil
}
