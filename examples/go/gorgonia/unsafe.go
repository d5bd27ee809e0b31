package main

import (
	"runtime"
	"unsafe"

	"gorgonia.org/tensor"
)

// pointer is where a tensor's memory begins, which package tensor gives as a number only. The
// memory lives as long as the tensor does, and Go memory as long as the pointer does.
func pointer(d *tensor.Dense) unsafe.Pointer {
	if d.MemSize() == 0 {
		return nil
	}
	address := d.Uintptr()
	p := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	runtime.KeepAlive(d)
	return p
}

// raw is the memory of a tensor that Go can reach.
func raw(d *tensor.Dense) []byte {
	return unsafe.Slice((*byte)(pointer(d)), int(d.MemSize()))
}
