package bridge

// #include "job.h"
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

// dims are the extents and then the strides, in bytes, of an array.
func (j *job) dims(a *C.gf_array) []int64 {
	from, n := int(a.dims), 2*int(a.ndim)
	return unsafe.Slice((*int64)(j.c.dims), int(j.c.dims_len))[from : from+n : from+n]
}

// span is the memory that view v touches when its element 0 is at addr.
func span(addr C.uint64_t, v flatten.View, elemBytes int64) []byte {
	lo, hi := v.Span(elemBytes)
	return bytesAt(int64(addr)+lo, hi-lo)
}

// bytesAt is n bytes at addr, which is no Go memory.
func bytesAt(addr, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// slices collects the memory of entries and outputs in the order of the plan.
func (j *job) slices() {
	data := unsafe.Slice(j.c.data, int(j.c.entries))
	rowBytes := j.layout.RowBytes()
	j.src, j.dst = j.src[:0], j.dst[:0]
	for i, rows := range j.layout.Rows {
		e := i
		if j.order != nil {
			e = j.order[i]
		}
		if j.uniform() {
			j.src = append(j.src, bytesAt(int64(data[e]), rows*rowBytes))
		} else {
			j.src = append(j.src, span(data[e], j.entries[i].View, j.layout.DType.ElemBytes()))
		}
	}
	out := unsafe.Slice(j.c.out_data, int(j.c.outs_len))
	for b := range j.layout.Batches {
		if j.outs == nil {
			j.dst = append(j.dst, bytesAt(int64(out[b]), j.layout.BatchBytes(b)))
		} else {
			j.dst = append(j.dst, span(out[b], j.outs[b], j.layout.DType.ElemBytes()))
		}
	}
}
