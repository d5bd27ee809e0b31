package bridge

// #include "job.h"
// #include "team.h"
import "C"

import (
	"slices"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// isPlain reports whether the layout says all there is to know of the entries, so that no plan is needed: contiguous
// entries on one device, joined along dimension 0. Rows without bytes are left to the general way, which finds out that
// counts do not overflow; so are copies on Go's threads.
func (j *job) isPlain() bool {
	l := &j.layout
	if !j.uniform || j.casting || l.Dim != 0 || l.RowBytes() == 0 || j.c.kind >= C.GF_KIND_EXCHANGE {
		return false
	}
	switch l.Devices[0].Type {
	case flatten.DeviceCUDA:
		return true
	case flatten.DeviceCPU:
		return j.plainThreads() > 0
	}
	return false
}

// plainThreads is on how many threads a plain job is copied on the CPU: all of torch's if they are awake, or this one;
// 0 where that is for Go's.
func (j *job) plainThreads() int {
	total := j.layout.Bytes()
	switch workers := j.workers(total); {
	case workers > 1 && C.gf_team_awake() != 0:
		return workers
	case total < aloneBytes || workers == 1:
		return 1
	}
	return 0
}

// fillPlain copies the entries of a plain job into new outputs, or into those of the list at address outs, one in all if
// they are packed. It is not done, and has moved nothing, where outputs that were given have to be looked at more closely.
func (j *job) fillPlain(outs int64) (done bool, status C.int, err error) {
	rows := j.plainRows()
	if outs == 0 {
		status, err = j.makeOutputs(rows)
	} else {
		status, err = j.readOutputs(outs)
	}
	if status != C.GF_DONE || err != nil {
		return false, status, err
	}
	if outs != 0 && !j.fitPlain(rows) {
		return false, status, nil
	}
	j.placePlain()
	if outs != 0 && !j.apart.Check(&j.layout, j.dstAddr, j.srcAddrs()) {
		return false, status, nil
	}
	if j.layout.Devices[0].Type == flatten.DeviceCUDA {
		return true, status, j.gatherPlain()
	}
	j.copyPlain()
	return true, status, nil
}

func (j *job) isPacked() bool { return j.c.flags&C.GF_FLAG_PACKED != 0 }

// plainRows are the rows of each output.
func (j *job) plainRows() []int64 {
	rows := j.batchRows()
	if !j.isPacked() {
		return rows
	}
	for _, n := range rows[1:] {
		rows[0] += n
	}
	return rows[:1]
}

// fitPlain reports whether the outputs that were given are contiguous and have so many rows.
func (j *job) fitPlain(rows []int64) bool {
	if int(j.c.outs_len) != len(rows) {
		return false
	}
	j.snapshot()
	first := j.array(0)
	for b, odd := range j.outOdd() {
		out := j.array(int(odd))
		shape := j.dimsOf(out)[:out.ndim]
		if out.contiguous == 0 || out.dtype != first.dtype || out.device != first.device || out.ndim != first.ndim ||
			shape[0] != rows[b] || !slices.Equal(shape[1:], j.layout.RowShape) {
			return false
		}
	}
	return true
}

// placePlain collects where the output of each batch begins.
func (j *job) placePlain() {
	j.dstAddr = j.dstAddr[:0]
	var at uintptr
	for b := range j.layout.Batches {
		if b == 0 || !j.isPacked() {
			at = uintptr(j.outAddr(b))
		}
		j.dstAddr = append(j.dstAddr, at)
		at += uintptr(j.layout.BatchBytes(b))
	}
}

func (j *job) gatherPlain() error {
	device := int(j.layout.Devices[0].Index)
	var stream C.uint64_t
	if _, err := j.result(C.gf_current_stream(j.c, C.int32_t(device), &stream)); err != nil {
		return err
	}
	C.gf_pause(j.c) // see gatherOn
	defer C.gf_resume(j.c)
	return deviceError(gpu.GatherPlain(device, uintptr(stream), j.layout.Rows, j.layout.RowBytes(), j.dstAddr, j.srcAddrs()))
}

func (j *job) copyPlain() {
	if j.layout.Bytes() > gilBytes {
		C.gf_pause(j.c)
		defer C.gf_resume(j.c)
	}
	for b, at := range j.dstAddr {
		if *j.c.out_odd < 0 { // new memory
			wantHugePages(uint64(at), j.layout.BatchBytes(b))
		}
	}
	if threads := j.plainThreads(); threads > 1 {
		j.dealPlain(shareSize(j.layout.Bytes(), threads))
		j.team.copy(threads)
		return
	}
	C.gf_copy_plain(firstAddr(j.dstAddr), C.int64_t(len(j.dstAddr)), j.c.data, j.c.rows, j.c.entries, C.int64_t(j.layout.RowBytes()))
}

// dealPlain is deal without a plan.
func (j *job) dealPlain(size int64) {
	src, rows, rowBytes := j.srcAddrs(), j.layout.Rows, j.layout.RowBytes()
	t := &j.team
	t.begin(size)
	for b, at := range j.dstAddr {
		dst := uint64(at)
		for e := b; e < len(rows); e += len(j.dstAddr) {
			n := rows[e] * rowBytes
			t.add(dst, uint64(src[e]), n)
			dst += uint64(n)
		}
	}
	t.end()
}
