package bridge

// #include "job.h"
// #include "own.h"
import "C"

import (
	"unsafe"

	"github.com/goflat/goflat/flatten"
)

// This file holds all of the bridge's unsafe. It gives Go slices over memory that the job keeps alive: the collector's
// tables, valid until close or until the collector grows them, and the bytes of entries and outputs, valid until close.

func (j *job) cRows() []int64 {
	return unsafe.Slice((*int64)(j.c.rows), int(j.c.entries))
}

func (j *job) cOdd() []C.int32_t { return unsafe.Slice(j.c.odd, int(j.c.entries)) }

func (j *job) outOdd() []C.int32_t { return unsafe.Slice(j.c.out_odd, int(j.c.outs_len)) }

func (j *job) array(i int) *C.gf_array {
	return &unsafe.Slice(j.c.arrays, int(j.c.arrays_len))[i]
}

// firstOf is the address of the first of items for a C function, nil if there is none.
func firstOf(items []int64) *C.int64_t {
	return (*C.int64_t)(unsafe.SliceData(items))
}

// firstAddr is the same of addresses.
func firstAddr(items []uintptr) *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(items)))
}

// snapshot copies extents and strides into Go memory: the collector's table moves when it grows, and views of outputs
// that the caller gave are added to it after those of entries.
func (j *job) snapshot() {
	j.dims = append(j.dims[:0], unsafe.Slice((*int64)(j.c.dims), int(j.c.dims_len))...)
}

// dimsOf are the extents and then the strides, in bytes, of an array.
func (j *job) dimsOf(a *C.gf_array) []int64 {
	from, n := int(a.dims), 2*int(a.ndim)
	return j.dims[from : from+n : from+n]
}

// addr is the address of element 0 of the entry in slot e.
func (j *job) addr(e int) uint64 {
	return uint64(unsafe.Slice(j.c.data, int(j.c.entries))[e])
}

// srcAddrs are the addresses of all entries as they stand in the collector's table.
func (j *job) srcAddrs() []uintptr {
	return unsafe.Slice((*uintptr)(unsafe.Pointer(j.c.data)), int(j.c.entries))
}

// outAddr is the address of element 0 of output b.
func (j *job) outAddr(b int) uint64 {
	return uint64(unsafe.Slice(j.c.out_data, int(j.c.outs_len))[b])
}

// span is the memory that view v touches when its element 0 is at addr.
func span(addr uint64, v flatten.View, elemBytes int64) []byte {
	lo, hi := v.Span(elemBytes)
	return bytesAt(addr+uint64(lo), hi-lo)
}

// bytesAt is n bytes at addr, which is no Go memory.
func bytesAt(addr uint64, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// slices collects the memory of entries and outputs in the order of the plan.
func (j *job) slices() {
	elem, rowBytes := j.layout.DType.ElemBytes(), j.layout.RowBytes()
	j.src, j.dst = j.src[:0], j.dst[:0]
	for i, rows := range j.layout.Rows {
		if addr := j.addr(j.slot(i)); len(j.entries) == 0 {
			j.src = append(j.src, bytesAt(addr, rows*rowBytes))
		} else {
			j.src = append(j.src, span(addr, j.entries[i].View, elem))
		}
	}
	for b := range j.layout.Batches {
		if j.outs == nil {
			j.dst = append(j.dst, bytesAt(j.outAddr(b), j.layout.BatchBytes(b)))
		} else {
			j.dst = append(j.dst, span(j.outAddr(b), j.outs[b], elem))
		}
	}
}

// addresses collects where entries and outputs begin, in the order of the plan: their lowest addresses.
func (j *job) addresses() {
	elem := j.layout.DType.ElemBytes()
	j.srcAddr, j.dstAddr = j.srcAddr[:0], j.dstAddr[:0]
	for i := range j.layout.Rows {
		var lo int64
		if len(j.entries) != 0 {
			lo, _ = j.entries[i].Span(elem)
		}
		j.srcAddr = append(j.srcAddr, uintptr(j.addr(j.slot(i))+uint64(lo)))
	}
	for b := range j.layout.Batches {
		var lo int64
		if j.outs != nil {
			lo, _ = j.outs[b].Span(elem)
		}
		j.dstAddr = append(j.dstAddr, uintptr(j.outAddr(b)+uint64(lo)))
	}
}

// wordsAt is n numbers at an address that Python keeps alive during the call.
func wordsAt(address int64, n int) []int64 {
	addr := uint64(address)
	return unsafe.Slice((*int64)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// ownRecords is what gf_survey wrote for n entries, at an address that Python keeps alive during the call.
func ownRecords(address int64, n int) []C.gf_own {
	addr := uint64(address)
	return unsafe.Slice((*C.gf_own)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
