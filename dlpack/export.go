package dlpack

// #include "abi.h"
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"unsafe"

	"github.com/goflat/goflat/flatten"
)

// Options of an export; the zero value is right for most.
type Options struct {
	// Release is called once, when the consumer has called the deleter: on any thread, and
	// while Python's lock is held if Python calls it. It must not panic.
	Release  func()
	ReadOnly bool // forbids the consumer to write
	// Unversioned exports the struct of DLPack before 1.0, which cannot be read-only. torch
	// takes the other one from version 2.9 on, NumPy from 2.1 on.
	Unversioned bool
}

// ExportBytes lends Go memory: the bytes that a view touches, lowest address first, such as
// an output of [flatten.Plan.Execute]. They are pinned until the consumer has called the
// deleter. e says what they are; its device is taken to be the CPU, whatever it says.
//
// It returns a *flatten.ShapeError where memory is too short, and the errors of [Export].
func ExportBytes(e flatten.Entry, memory []byte, o Options) (managed unsafe.Pointer, err error) {
	e.Device = flatten.Device{Type: flatten.DeviceCPU}
	lo, hi := e.Span(e.DType.ElemBytes())
	if int64(len(memory)) < hi-lo {
		return nil, &flatten.ShapeError{Key: -1, Batch: -1, Got: fmt.Sprintf("%d bytes", len(memory)), Want: fmt.Sprintf("%d", hi-lo)}
	}
	pinned, release := new(runtime.Pinner), o.Release
	var low uintptr
	if len(memory) > 0 {
		pinned.Pin(&memory[0])
		low = uintptr(unsafe.Pointer(&memory[0]))
	}
	o.Release = func() {
		pinned.Unpin()
		if release != nil {
			release()
		}
	}
	managed, err = Export(e, low-uintptr(lo), o)
	if err != nil {
		pinned.Unpin()
	}
	return managed, err
}

// Export lends memory that is not Go's, such as that of a CUDA device: data is the address
// of element 0. Whoever has the memory keeps it until Options.Release is called. The
// result is a DLManagedTensorVersioned for one consumer.
//
// It returns a *flatten.ShapeError for strides that are not one per dim or no whole number
// of elements, a *flatten.DTypeError for an element without bits, and [ErrTensor] where the
// options contradict each other. Release is not called then.
func Export(e flatten.Entry, data uintptr, o Options) (managed unsafe.Pointer, err error) {
	if o.ReadOnly && o.Unversioned {
		return nil, fmt.Errorf("%w: got read-only and unversioned, which that struct cannot say", ErrTensor)
	}
	strides, err := inElements(e)
	if err != nil {
		return nil, err
	}
	release := o.Release
	if release == nil {
		release = func() {}
	}
	handle := cgo.NewHandle(release)
	var d *C.goflat_dl_tensor
	ndim := C.int32_t(len(e.Shape))
	if o.Unversioned {
		if m := C.goflat_dl_new_unversioned(C.uintptr_t(handle), ndim); m != nil {
			managed, d = unsafe.Pointer(m), &m.tensor
		}
	} else if m := C.goflat_dl_new_versioned(C.uintptr_t(handle), ndim); m != nil {
		managed, d = unsafe.Pointer(m), &m.tensor
		if o.ReadOnly {
			m.flags = C.GOFLAT_DL_READ_ONLY
		}
	}
	if d == nil {
		handle.Delete()
		return nil, fmt.Errorf("%w: no memory for its description", ErrTensor)
	}
	describe(d, e, data, strides)
	return managed, nil
}

// describe fills in what was made for so many dims.
func describe(d *C.goflat_dl_tensor, e flatten.Entry, data uintptr, strides []int64) {
	d.data = pointer(data)
	d.device_type, d.device_index = C.int32_t(e.Device.Type), C.int32_t(e.Device.Index)
	d.code, d.bits, d.lanes = C.uint8_t(e.DType.Code), C.uint8_t(e.DType.Bits), C.uint16_t(e.DType.Lanes)
	copy(extents(d.shape, d.ndim), e.Shape)
	copy(extents(d.strides, d.ndim), strides)
}

// inElements returns an entry's strides as DLPack counts them; those of a contiguous one
// as well, since DLPack 1.2 wants them said.
func inElements(e flatten.Entry) ([]int64, error) {
	elem := e.DType.ElemBytes()
	if elem == 0 {
		return nil, &flatten.DTypeError{Key: -1, Batch: -1, Got: e.DType.String(), Want: "at least one bit an element"}
	}
	strides := make([]int64, len(e.Shape))
	if e.Strides == nil {
		step := int64(1)
		for i := len(strides) - 1; i >= 0; i-- {
			strides[i] = step
			step *= max(e.Shape[i], 1)
		}
		return strides, nil
	}
	if len(e.Strides) != len(e.Shape) {
		return nil, &flatten.ShapeError{Key: -1, Batch: -1, Got: fmt.Sprintf("%d strides", len(e.Strides)), Want: fmt.Sprintf("%d", len(e.Shape))}
	}
	for i, s := range e.Strides {
		if s%elem != 0 {
			return nil, &flatten.ShapeError{Key: -1, Batch: -1, Got: fmt.Sprintf("a stride of %d bytes", s), Want: fmt.Sprintf("a multiple of %d", elem)}
		}
		strides[i] = s / elem
	}
	return strides, nil
}

// goflatDLPackRelease is what the deleters of managed.c call.
//
//export goflatDLPackRelease
func goflatDLPackRelease(handle C.uintptr_t) {
	h := cgo.Handle(handle)
	release := h.Value().(func())
	h.Delete()
	release()
}
