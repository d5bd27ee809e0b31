// Dlpack is goflat in Go for programs in any language: a shared library of one function that
// joins tensors of whatever library, on the host or on a CUDA device, and returns memory of
// its own as a tensor. use.py calls it with tensors of PyTorch.
//
//	go build -buildmode=c-shared -o libjoin.so ./examples/go/dlpack
//	python examples/go/dlpack/use.py libjoin.so cpu
package main

// #include <stdint.h>
import "C"

import (
	"unsafe"

	"github.com/goflat/goflat/dlpack"
	"github.com/goflat/goflat/flatten"
)

func main() {}

// Join concatenates count tensors of one device along their first dim, and returns a new one.
// tensors are DLManagedTensors, which Join takes over and gives back before it returns; on
// a CUDA device their memory must stay until the stream has passed this point. Where they do
// not fit together it returns NULL and a text that the caller frees.
//
//export Join
func Join(tensors *unsafe.Pointer, count C.int64_t, stream C.uintptr_t, failed **C.char) unsafe.Pointer {
	joined, err := join(unsafe.Slice(tensors, int(count)), uintptr(stream))
	if err != nil {
		*failed = C.CString(err.Error())
	}
	return joined
}

func join(managed []unsafe.Pointer, stream uintptr) (unsafe.Pointer, error) {
	var tensors []*dlpack.Tensor
	var refused error
	for _, m := range managed {
		t, err := dlpack.ImportUnversioned(m)
		if err != nil {
			refused = err
			continue
		}
		defer t.Close() // also those beside one that was refused
		tensors = append(tensors, t)
	}
	if refused != nil {
		return nil, refused
	}
	plan, err := planFor(tensors)
	if err != nil {
		return nil, err
	}
	out := flatten.Entry{View: flatten.View{Shape: plan.Layout.OutShape(0)}, DType: plan.Layout.DType}
	if len(tensors) > 0 {
		out.Device = tensors[0].Device
	}
	if out.Device.Type == flatten.DeviceCUDA {
		return joinOnDevice(out, plan, tensors, stream)
	}
	return joinOnHost(out, plan, tensors)
}

// planFor plans one batch, whose keys the tensors are.
func planFor(tensors []*dlpack.Tensor) (*flatten.Plan, error) {
	entries := make([]flatten.Entry, len(tensors))
	for i, t := range tensors {
		entries[i] = t.Entry
	}
	layout, err := flatten.NewLayout(nil, 1, entries, 0)
	if err != nil {
		return nil, err
	}
	return flatten.NewPlan(layout, entries, nil)
}

func joinOnHost(out flatten.Entry, plan *flatten.Plan, tensors []*dlpack.Tensor) (unsafe.Pointer, error) {
	src := make([][]byte, len(tensors))
	for i, t := range tensors {
		memory, err := t.Bytes()
		if err != nil {
			return nil, err
		}
		src[i] = memory
	}
	dst := make([]byte, plan.Layout.BatchBytes(0)) // pinned until the consumer is done with it
	plan.Execute([][]byte{dst}, src, 0)
	return dlpack.ExportBytes(out, dst, dlpack.Options{Unversioned: true})
}
