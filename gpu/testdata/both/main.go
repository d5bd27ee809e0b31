// Command both is a program of a user who has gorgonia.org/cu and adds goflat: it makes a
// context and a stream, and joins two rows on them. It prints what package cu says before
// and after goflat has opened the driver, and ends with 0 also where there is none.
package main

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

func main() {
	n, err := cu.NumDevices()
	fmt.Println("before:", n, err)
	if err := gpu.Available(); err != nil {
		fmt.Println("no driver:", err)
		return
	}
	n, err = cu.NumDevices()
	fmt.Println("after:", n, err)
	joined, err := join("gof", "lat")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("joined:", joined)
}

// join makes one string of two on device 0.
func join(a, b string) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context, err := cu.Device(0).MakeContext(cu.SchedAuto)
	if err != nil {
		return "", err
	}
	defer context.Destroy()
	goflat, err := gpu.NewContext(context)
	if err != nil {
		return "", err
	}
	defer goflat.Close()
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return "", err
	}
	return gather(goflat, stream, a, b)
}

func gather(goflat *gpu.Context, stream cu.Stream, a, b string) (string, error) {
	memory, err := cu.MemAlloc(int64(2 * len(a+b)))
	if err != nil {
		return "", err
	}
	text, joined := []byte(a+b), memory+cu.DevicePtr(len(a+b))
	if err := cu.MemcpyHtoD(memory, unsafe.Pointer(&text[0]), int64(len(text))); err != nil {
		return "", err
	}
	clear(text)
	plan := new(flatten.Plan)
	layout := &flatten.Layout{
		NumKeys: 2, Batches: 1, Rows: []int64{int64(len(a)), int64(len(b))},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}
	if err := plan.BuildPlain(layout); err != nil {
		return "", err
	}
	// The default stream of the copy above is not waited for by a stream that does not block.
	if err := cu.Synchronize(); err != nil {
		return "", err
	}
	src := []cu.DevicePtr{memory, memory + cu.DevicePtr(len(a))}
	if err := goflat.Gather(stream, plan, []cu.DevicePtr{joined}, src); err != nil {
		return "", err
	}
	if err := stream.Synchronize(); err != nil {
		return "", err
	}
	err = cu.MemcpyDtoH(unsafe.Pointer(&text[0]), joined, int64(len(text)))
	return string(text), err
}
