package bridge

// #include "job.h"
import "C"

import (
	"errors"
	"strconv"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// fill copies the entries into outputs: the caller's if outs is the address of a list, else new ones.
func (j *job) fill(outs int64) (C.int, error) {
	plain := j.isPlain()
	if plain {
		if done, status, err := j.fillPlain(outs); done || status != C.GF_DONE || err != nil {
			return status, err
		}
	}
	move := j.mover()
	if move == nil {
		return C.GF_FALLBACK, nil
	}
	if j.c.flags&C.GF_FLAG_PACKED != 0 {
		if j.layout.Legacy != nil || j.c.kind >= C.GF_KIND_EXCHANGE {
			return C.GF_FALLBACK, nil // pieces of shapes of two kinds, or of a library that may not cut
		}
		if err := j.pack(); err != nil {
			return 0, err
		}
	}
	var status C.int
	var err error
	switch {
	case outs == 0:
		status, err = j.makePlanned()
	case plain: // which has read them
		status, err = j.planOutputs()
	default:
		status, err = j.takeOutputs(outs)
	}
	if status != C.GF_DONE || err != nil {
		return status, err
	}
	if err := move(); !errors.Is(err, gpu.ErrMisaligned) {
		return C.GF_DONE, err
	}
	return C.GF_FALLBACK, nil // and nothing has been launched
}

// mover is what moves the bytes of this job, nil where the framework has to: on devices that are neither CPU nor CUDA,
// and in jobs on both.
func (j *job) mover() func() error {
	first := j.layout.Devices[0].Type
	for _, d := range j.layout.Devices {
		if d.Type != first {
			return nil
		}
	}
	switch first {
	case flatten.DeviceCPU:
		if j.casting {
			return nil
		}
		return j.copy
	case flatten.DeviceCUDA:
		return j.gather
	}
	return nil
}

// makePlanned makes the outputs and plans the copy.
func (j *job) makePlanned() (C.int, error) {
	if status, err := j.makeOutputs(j.batchRows()); status != C.GF_DONE || err != nil {
		return status, err
	}
	return C.GF_DONE, j.build()
}

// makeOutputs allocates contiguous outputs of so many rows each.
func (j *job) makeOutputs(rows []int64) (C.int, error) {
	l := &j.layout
	j.outs = nil
	j.outShape = append(append(append(j.outShape[:0], l.RowShape[:l.Dim]...), 0), l.RowShape[l.Dim:]...)
	return j.result(C.gf_make_outputs(
		j.c, C.int32_t(len(j.outShape)), firstOf(j.outShape), C.int32_t(l.Dim), C.int64_t(len(rows)), firstOf(rows),
	))
}

// batchRows are the extents of the outputs along the dim.
func (j *job) batchRows() []int64 {
	j.outRows = j.outRows[:0]
	for b := range j.layout.Batches {
		j.outRows = append(j.outRows, outRows(&j.layout, b))
	}
	return j.outRows
}

// outRows is the extent of output b along the dim, or -1 where the output has the shape (0,) as its entries do.
func outRows(l *flatten.Layout, b int) int64 {
	if l.Legacy != nil && len(l.OutShape(b)) != len(l.RowShape)+1 {
		return -1
	}
	return l.BatchRows(b)
}

// takeOutputs reads the caller's outputs, checks them against the layout and plans the copy.
func (j *job) takeOutputs(outs int64) (C.int, error) {
	if status, err := j.readOutputs(outs); status != C.GF_DONE || err != nil {
		return status, err
	}
	return j.planOutputs()
}

// readOutputs reads the caller's outputs.
func (j *job) readOutputs(outs int64) (C.int, error) {
	return j.result(C.gf_take_outputs(j.c, C.uint64_t(outs)))
}

// planOutputs checks the outputs that were read against the layout and plans the copy.
func (j *job) planOutputs() (C.int, error) {
	if int(j.c.outs_len) != j.layout.Batches {
		want := strconv.Itoa(j.layout.Batches) + ", one per batch"
		return 0, &flatten.ShapeError{Key: -1, Batch: -1, Got: strconv.Itoa(int(j.c.outs_len)) + " outputs", Want: want}
	}
	j.snapshot()
	j.outs = j.outs[:0]
	for b := range j.layout.Batches {
		out := j.entry(j.array(int(j.outOdd()[b])))
		if err := j.checkOutput(b, out); err != nil {
			return 0, err
		}
		j.outs = append(j.outs, out.View)
	}
	if err := j.build(); err != nil {
		return 0, ofOut(err)
	}
	if j.casting {
		return j.checkCastOverlap()
	}
	return C.GF_DONE, j.checkOverlap()
}

// checkOutput makes sure that the caller's output b has the dtype and device of its batch; Build checks its shape.
func (j *job) checkOutput(b int, out flatten.Entry) error {
	want := j.layout.DType
	if j.casting {
		want = j.target.DType()
	}
	if out.DType != want {
		return &flatten.DTypeError{Key: -1, Batch: b, Got: "out of " + out.DType.String(), Want: want.String()}
	}
	if out.Device != j.layout.Devices[b] {
		return &flatten.DeviceError{Key: -1, Batch: b, Got: "out on " + out.Device.String(), Want: j.layout.Devices[b].String()}
	}
	return nil
}

// ofOut makes clear that it is an output whose shape is wrong.
func ofOut(err error) error {
	var shape *flatten.ShapeError
	if errors.As(err, &shape) && shape.Key < 0 {
		return &flatten.ShapeError{Key: -1, Batch: shape.Batch, Got: "out of shape " + shape.Got, Want: shape.Want}
	}
	return err
}

// checkOverlap makes sure that the caller's outputs share no byte with an entry or with each other.
func (j *job) checkOverlap() error {
	j.outMemory, j.inMemory = j.outMemory[:0], j.inMemory[:0]
	for b, view := range j.outs {
		j.outMemory = append(j.outMemory, flatten.Memory{View: view, Addr: j.outAddr(b)})
	}
	j.counts = j.counts[:0]
	for i, rows := range j.layout.Rows {
		j.inMemory = append(j.inMemory, flatten.Memory{View: j.extent(i, rows), Addr: j.addr(j.slot(i))})
	}
	return j.layout.CheckOverlap(j.outMemory, j.inMemory)
}

// extent is a view of the memory of entry i: its own where entries are listed, else one row of all its elements.
func (j *job) extent(i int, rows int64) flatten.View {
	if len(j.entries) != 0 {
		return j.entries[i].View
	}
	j.counts = append(j.counts, rows*j.layout.RowBytes()/j.layout.DType.ElemBytes())
	return flatten.View{Shape: j.counts[i : i+1 : i+1]} // stays valid where append moves the rest
}

// slot is where entry i of the plan stands in the collector's tables.
func (j *job) slot(i int) int {
	if j.order == nil {
		return i
	}
	return j.order[i]
}

// build plans the copy.
func (j *job) build() error {
	if j.uniform && j.outs == nil {
		return j.plan.BuildPlain(&j.layout)
	}
	if j.uniform && contiguous(j.outs) {
		return j.plan.BuildPlainInto(&j.layout, j.outs)
	}
	if j.uniform {
		j.listEntries()
		j.reorderEntries()
	}
	if j.casting {
		return j.plan.Build(&j.layout, j.countEntries(), j.countOuts())
	}
	return j.plan.Build(&j.layout, j.entries, j.outs)
}

func contiguous(views []flatten.View) bool {
	for i := range views {
		if views[i].Strides != nil {
			return false
		}
	}
	return true
}

// copy moves the bytes on the CPU, without the GIL where that takes a while.
func (j *job) copy() error {
	total := j.layout.Bytes()
	if total > gilBytes {
		C.gf_pause(j.c)
		defer C.gf_resume(j.c)
	}
	if j.outs == nil {
		for b := range j.layout.Batches {
			wantHugePages(j.outAddr(b), j.layout.BatchBytes(b))
		}
	}
	j.move(total)
	return nil
}
