package bridge

// #include "job.h"
import "C"

import (
	"sync"

	"github.com/goflat/goflat/flatten"
)

// gilBytes is the most that is copied while the GIL is held: 64 KiB take about 5 µs, less than giving the GIL away and
// getting it back costs when other Python threads run.
const gilBytes = 64 << 10

// job is one call: the collector's tables and, reused from call to call, the memory to plan it.
type job struct {
	c       *C.gf_job
	uniform bool // all entries are contiguous and differ in their rows only

	layout     flatten.Layout
	device     []flatten.Device
	shape      []int64
	entries    []flatten.Entry
	outs       []flatten.View
	plan       flatten.Plan
	dims       []int64 // extents and strides of all arrays, see snapshot
	order      []int   // slot of each entry of the plan; nil: the same
	orderSpace []int
	spare      []flatten.Entry
	rows       []int64 // of a packed job
	outRows    []int64
	outShape   []int64
	src        [][]byte
	dst        [][]byte
	srcAddr    []uintptr
	dstAddr    []uintptr
	team       team
	casting    bool // the plan counts elements, see cast.go
	target     flatten.Float
	from       []flatten.Float // of each entry of the plan
	counted    []flatten.Entry
	countedOut []flatten.View
	rules      flatten.Rules
	trial      int64
	inMemory   []flatten.Memory
	counts     []int64
	outMemory  []flatten.Memory
	apart      flatten.Apart
}

var jobs = sync.Pool{New: func() any { return new(job) }}

// open takes the GIL and reads the containers at the given addresses.
func open(features, result, dim, flags, like int64) (*job, error) {
	c := C.gf_open(C.uint64_t(features), C.uint64_t(result), C.int64_t(dim), C.int32_t(flags), C.uint64_t(like))
	if c == nil {
		return nil, &wireError{"OOM", -1, -1, "no memory for the job's tables", ""}
	}
	j := jobs.Get().(*job)
	j.c, j.casting, j.trial = c, false, noTrial
	return j, nil
}

// publish hands the outputs over and closes the job.
func (j *job) publish() (C.int, error) {
	j.c.dim = C.int64_t(j.layout.Dim)
	j.shape = append(j.shape[:0], j.layout.RowShape...)
	status := C.gf_close(j.c, 1, C.int32_t(len(j.shape)), firstOf(j.shape))
	j.c = nil
	if status == C.GF_ERROR {
		return status, &wireError{code: "PYTHON", key: -1, batch: -1}
	}
	return status, nil
}

// abandon closes a job that run left open, and makes its memory ready for the next call.
func (j *job) abandon() {
	if j.c != nil {
		C.gf_close(j.c, 0, 0, nil)
		j.c = nil
	}
	j.order = nil
	j.entries = emptied(j.entries)
	j.src = emptied(j.src)
	j.dst = emptied(j.dst)
	j.counted, j.countedOut = emptied(j.counted), emptied(j.countedOut)
	j.inMemory, j.outMemory = emptied(j.inMemory), emptied(j.outMemory)
	jobs.Put(j)
}

// emptied is items without anything that would keep other memory alive.
func emptied[T any](items []T) []T {
	clear(items)
	return items[:0]
}

// run does the whole job; status is one of the GF_ statuses but GF_ERROR.
func (j *job) run(outs, dim int64) (C.int, error) {
	if status, err := j.result(C.int(j.c.status)); status != C.GF_DONE || err != nil {
		return status, err
	}
	if j.c.entries == 0 {
		return C.GF_DONE, nil
	}
	if status, err := j.describe(int(dim)); status != C.GF_DONE || err != nil {
		return status, err
	}
	if j.c.flags&C.GF_FLAG_LAYOUT != 0 {
		if j.c.kind == C.GF_KIND_DLPACK {
			return C.GF_FALLBACK, nil // which knows what dtype such arrays have for the caller
		}
		return j.publish()
	}
	fill := j.fill
	if j.casting && j.onCPU() {
		fill = j.makeToFill
	}
	status, err := fill(outs)
	if err != nil || status != C.GF_DONE && status != C.GF_FILL {
		return status, j.unpacked(err)
	}
	if published, err := j.publish(); published != C.GF_DONE || err != nil {
		return published, err
	}
	return status, nil
}

// result turns a status of the collector into an error where it is one.
func (j *job) result(status C.int) (C.int, error) {
	if status != C.GF_ERROR {
		return status, nil
	}
	e := &j.c.error
	return status, &wireError{
		C.GoString(e.code), int(e.key), int(e.batch), C.GoString(&e.got[0]), C.GoString(&e.want[0]),
	}
}

// describe fills the layout, checking the entries as torch.cat would.
func (j *job) describe(dim int) (C.int, error) {
	j.uniform = j.c.arrays_len == 1 && *j.c.odd == -1
	if !j.uniform {
		j.listEntries()
	}
	if j.c.like != nil {
		return j.describeCast(dim)
	}
	return C.GF_DONE, j.describeAll(dim, j.entries)
}

// describeAll describes a job of entries, which are nobody's concern if the job is uniform.
func (j *job) describeAll(dim int, entries []flatten.Entry) error {
	if j.uniform {
		j.describeUniform()
		return nil
	}
	layout, err := flatten.NewLayout(nil, int(j.c.batches), entries, dim)
	if err != nil {
		return err
	}
	j.layout = *layout
	copy(j.cRows(), layout.Rows)
	return nil
}

func (j *job) describeUniform() {
	j.snapshot()
	first := j.array(0)
	dim := int(j.c.dim)
	shape := j.dimsOf(first)[:first.ndim]
	j.shape = append(append(j.shape[:0], shape[:dim]...), shape[dim+1:]...)
	j.device = j.device[:0]
	for range int(j.c.batches) {
		j.device = append(j.device, deviceOf(first))
	}
	j.layout = flatten.Layout{
		NumKeys: int(j.c.keys), Batches: int(j.c.batches), Dim: dim, RowShape: j.shape, Rows: j.cRows(),
		DType: dtypeOf(first), Devices: j.device,
	}
}

// listEntries describes every entry in full, which only jobs with odd entries need.
func (j *job) listEntries() {
	j.snapshot()
	j.entries = j.entries[:0]
	odd := j.cOdd()
	for e, rows := range j.cRows() {
		if odd[e] >= 0 {
			j.entries = append(j.entries, j.entry(j.array(int(odd[e]))))
		} else {
			j.entries = append(j.entries, j.likeFirst(rows))
		}
	}
}

// likeFirst is a contiguous entry that differs from the first in its rows only.
func (j *job) likeFirst(rows int64) flatten.Entry {
	first := j.array(0)
	shape := append([]int64(nil), j.dimsOf(first)[:first.ndim]...)
	shape[j.c.dim] = rows
	return flatten.Entry{View: flatten.View{Shape: shape}, DType: dtypeOf(first), Device: deviceOf(first)}
}

func (j *job) entry(a *C.gf_array) flatten.Entry {
	return flatten.Entry{View: j.view(a), DType: dtypeOf(a), Device: deviceOf(a)}
}

func (j *job) view(a *C.gf_array) flatten.View {
	dims := j.dimsOf(a)
	v := flatten.View{Shape: dims[:a.ndim:a.ndim]}
	if a.contiguous == 0 {
		v.Strides = dims[a.ndim:]
	}
	return v
}

func dtypeOf(a *C.gf_array) flatten.DType {
	return flatten.DType{Code: uint8(a.dtype.code), Bits: uint8(a.dtype.bits), Lanes: uint16(a.dtype.lanes)}
}

func deviceOf(a *C.gf_array) flatten.Device {
	return flatten.Device{Type: int32(a.device._type), Index: int32(a.device.index)}
}
