package dlpack

// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/goflat/goflat/flatten"
)

// Sentinels by what a caller can do; compare with errors.Is.
var (
	// ErrVersion: the struct is of another generation of DLPack. Ask the producer for
	// version 1: in Python, __dlpack__(max_version=(1, 0)).
	ErrVersion = errors.New("dlpack: version not supported")
	// ErrTensor: the struct describes nothing that can be used. It is the producer's bug, or
	// not a tensor.
	ErrTensor = errors.New("dlpack: unusable tensor")
	// ErrClosed: the tensor was given back.
	ErrClosed = errors.New("dlpack: the tensor is closed")
)

// A Tensor is a tensor of another library, borrowed until Close.
type Tensor struct {
	// Entry has the strides in bytes, nil where it is contiguous. It stays valid after Close.
	flatten.Entry
	Data     uintptr // address of element 0, the struct's byte offset included
	ReadOnly bool    // whether the producer forbids to write

	giveBack func() // nil once closed
}

// Import borrows the tensor of a DLManagedTensorVersioned, which the caller gives up: Close
// calls its deleter. In Python it is what a capsule named "dltensor_versioned" holds; rename
// the capsule to "used_dltensor_versioned", so that it does not call the deleter as well.
//
// It returns [ErrVersion] or [ErrTensor]; the struct is the caller's then.
func Import(managed unsafe.Pointer) (*Tensor, error) {
	m := (*C.goflat_dl_versioned)(managed)
	if m == nil {
		return nil, fmt.Errorf("%w: got none", ErrTensor)
	}
	if m.major != C.GOFLAT_DL_MAJOR {
		return nil, fmt.Errorf("%w: got %d.%d, want %d", ErrVersion, m.major, m.minor, C.GOFLAT_DL_MAJOR)
	}
	t, err := read(&m.tensor, m.flags&C.GOFLAT_DL_PADDED != 0)
	if err != nil {
		return nil, err
	}
	t.ReadOnly = m.flags&C.GOFLAT_DL_READ_ONLY != 0
	t.giveBack = func() { C.goflat_dl_delete_versioned(m) }
	return t, nil
}

// ImportUnversioned is [Import] for the DLManagedTensor of DLPack before 1.0, in capsules
// named "dltensor". It cannot say that it is read-only.
func ImportUnversioned(managed unsafe.Pointer) (*Tensor, error) {
	m := (*C.goflat_dl_unversioned)(managed)
	if m == nil {
		return nil, fmt.Errorf("%w: got none", ErrTensor)
	}
	t, err := read(&m.tensor, false)
	if err != nil {
		return nil, err
	}
	t.giveBack = func() { C.goflat_dl_delete_unversioned(m) }
	return t, nil
}

// Close gives the tensor back; its memory must not be used any more. Work of a device
// that is enqueued must be done. A second call does nothing.
func (t *Tensor) Close() {
	if giveBack := t.giveBack; giveBack != nil {
		t.giveBack = nil
		giveBack()
	}
}

// Low is the lowest address that the tensor touches: what the offsets of a plan count
// from, and what gpu.Gather takes.
func (t *Tensor) Low() uintptr {
	lo, _ := t.Span(t.DType.ElemBytes())
	return t.Data + uintptr(lo)
}

// Bytes returns the memory that the tensor touches, as [flatten.Plan.Execute] takes it. It
// is the producer's: valid until Close, and only to be read where ReadOnly says so.
//
// It returns [ErrClosed], or a *flatten.DeviceError where Go cannot reach the memory.
func (t *Tensor) Bytes() ([]byte, error) {
	if t.giveBack == nil {
		return nil, ErrClosed
	}
	if t.Device.Type != flatten.DeviceCPU && t.Device.Type != deviceCUDAHost {
		return nil, &flatten.DeviceError{Key: -1, Batch: -1, Got: t.Device.String(), Want: "memory of the host"}
	}
	lo, hi := t.Span(t.DType.ElemBytes())
	return memory(t.Low(), hi-lo), nil
}

// deviceCUDAHost is DLPack's kDLCUDAHost: pinned memory.
const deviceCUDAHost int32 = 3

// read describes a tensor, and checks what else would lead astray.
func read(d *C.goflat_dl_tensor, padded bool) (*Tensor, error) {
	t := &Tensor{Data: uintptr(d.data) + uintptr(d.byte_offset)}
	t.DType = flatten.DType{Code: uint8(d.code), Bits: uint8(d.bits), Lanes: uint16(d.lanes)}
	t.Device = flatten.Device{Type: int32(d.device_type), Index: int32(d.device_index)}
	switch partial := int(d.bits) * int(d.lanes) % 8; {
	case t.DType.ElemBytes() == 0:
		return nil, fmt.Errorf("%w: got type %v, want at least one bit an element", ErrTensor, t.DType)
	case partial != 0 && !padded:
		return nil, fmt.Errorf("%w: got packed elements of type %v, want whole bytes", ErrTensor, t.DType)
	case d.ndim < 0 || d.ndim > 0 && d.shape == nil:
		return nil, fmt.Errorf("%w: got %d dims and the shape at %p", ErrTensor, d.ndim, d.shape)
	}
	t.Shape = int64s(d.shape, d.ndim)
	if d.strides != nil {
		t.Strides = int64s(d.strides, d.ndim)
	}
	if err := t.toBytes(); err != nil {
		return nil, err
	}
	return t, t.checkSpan()
}

// toBytes turns strides in elements into bytes, or drops them if they say contiguous.
func (t *Tensor) toBytes() error {
	if contiguous(t.Shape, t.Strides) {
		t.Strides = nil
		return nil
	}
	for i, s := range t.Strides {
		bytes := s * t.DType.ElemBytes()
		if bytes/t.DType.ElemBytes() != s {
			return fmt.Errorf("%w: got stride %d of dim %d, want less than 2^63 bytes", ErrTensor, s, i)
		}
		t.Strides[i] = bytes
	}
	return nil
}

// contiguous reports whether strides, in elements, are those of a row-major tensor
// without gaps. Strides of dims of one element do not matter, nor do any without elements.
func contiguous(shape, strides []int64) bool {
	step := int64(1)
	packed := true
	for i := len(strides) - 1; i >= 0; i-- {
		if shape[i] == 0 {
			return true
		}
		packed = packed && (shape[i] == 1 || strides[i] == step)
		step *= shape[i]
	}
	return packed
}

// mostBytes is more than any address space has.
const mostBytes = 1 << 60

// checkSpan makes sure that no address of the tensor wraps around.
func (t *Tensor) checkSpan() error {
	size, reach, empty := uint64(t.DType.ElemBytes()), uint64(0), false
	for i, n := range t.Shape {
		if n < 0 {
			return fmt.Errorf("%w: got shape %v, want no negative extent", ErrTensor, t.Shape)
		}
		var over, far, step uint64
		over, size = bits.Mul64(size, uint64(max(n, 1)))
		if t.Strides != nil {
			far, step = bits.Mul64(uint64(max(n, 1)-1), magnitude(t.Strides[i]))
		}
		if over != 0 || far != 0 || step >= mostBytes {
			size = mostBytes
		}
		size, reach, empty = min(size, mostBytes), min(reach+step, mostBytes), empty || n == 0
	}
	switch {
	case empty:
		return nil
	case size >= mostBytes || reach >= mostBytes:
		return fmt.Errorf("%w: got shape %v of %v, want less than 2^60 bytes", ErrTensor, t.Shape, t.DType)
	case t.Data == 0:
		return fmt.Errorf("%w: got no memory for shape %v", ErrTensor, t.Shape)
	}
	return nil
}

func magnitude(n int64) uint64 { return uint64(max(n, -n)) }
