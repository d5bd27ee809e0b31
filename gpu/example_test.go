package gpu_test

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// must stands for the error handling of a program.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// closed is check for what is deferred.
func closed(end func() error) { check(end()) }

// upload returns device memory that holds s, in the current context.
func upload(s string) cu.DevicePtr {
	memory := must(cu.MemAlloc(int64(len(s))))
	check(cu.MemcpyHtoD(memory, unsafe.Pointer(unsafe.StringData(s)), int64(len(s))))
	check(cu.Synchronize()) // streams that do not block would not wait for it
	return memory
}

// download waits for a stream and returns what device memory holds.
func download(stream cu.Stream, memory cu.DevicePtr, bytes int64) string {
	check(stream.Synchronize())
	host := make([]byte, bytes)
	check(cu.MemcpyDtoH(unsafe.Pointer(&host[0]), memory, bytes))
	return string(host)
}

// letters plans two keys, p2 and p3, of two batches, whose rows are one letter each.
func letters() *flatten.Plan {
	plan := new(flatten.Plan)
	check(plan.BuildPlain(&flatten.Layout{
		NumKeys: 2, Batches: 2, Rows: []int64{2, 3, 1, 1},
		DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1},
	}))
	return plan
}

func ExampleAvailable() {
	switch err := gpu.Available(); {
	case err == nil:
		fmt.Println("ready")
	case errors.Is(err, gpu.ErrNoDevice):
		fmt.Println("staying on the CPU:", err) // what was found, and what to do about it
	}
	// Output: ready
}

// A program that has a context and a stream of gorgonia.org/cu runs plans on them.
func ExampleNewContext() {
	check(gpu.Available()) // opens the driver: before the first call of package cu
	runtime.LockOSThread() // a thread has a current context, a goroutine has none
	defer runtime.UnlockOSThread()
	context := must(must(cu.GetDevice(0)).MakeContext(cu.SchedAuto)) // current from here on
	defer closed(context.Destroy)
	stream := must(cu.MakeStream(cu.NonBlocking))

	goflat := must(gpu.NewContext(context)) // once: it loads the kernels
	defer goflat.Close()

	src := []cu.DevicePtr{upload("ab"), upload("cde"), upload("f"), upload("g")}
	dst := []cu.DevicePtr{must(cu.MemAlloc(3)), must(cu.MemAlloc(4))}
	check(goflat.Gather(stream, letters(), dst, src)) // one launch for all batches
	fmt.Println(download(stream, dst[0], 3), download(stream, dst[1], 4))
	// Output: abf cdeg
}

// Where outputs and entries stay where they are, launches are made once.
func ExampleContext_Prepare() {
	check(gpu.Available())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context := must(must(cu.GetDevice(0)).MakeContext(cu.SchedAuto))
	defer closed(context.Destroy)
	stream := must(cu.MakeStream(cu.NonBlocking))
	goflat := must(gpu.NewContext(context))
	defer goflat.Close()

	src := []cu.DevicePtr{upload("ab"), upload("cde"), upload("f"), upload("g")}
	dst := []cu.DevicePtr{must(cu.MemAlloc(3)), must(cu.MemAlloc(4))}
	prepared := must(goflat.Prepare(letters(), dst, src))
	for _, text := range []string{"AB", "xy"} {
		check(cu.MemcpyHtoD(src[0], unsafe.Pointer(unsafe.StringData(text)), 2))
		check(cu.Synchronize())
		check(prepared.Launch(gpu.StreamHandle(stream)))
		fmt.Println(download(stream, dst[0], 3))
	}
	// Output:
	// ABf
	// xyf
}

// Rows change places within their own memory.
func ExampleContext_Permute() {
	check(gpu.Available())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context := must(must(cu.GetDevice(0)).MakeContext(cu.SchedAuto))
	defer closed(context.Destroy)
	stream := must(cu.MakeStream(cu.NonBlocking))
	goflat := must(gpu.NewContext(context))
	defer goflat.Close()

	rows := upload("abCDefGH")
	check(goflat.Permute(stream, &flatten.Permutation{
		Origin: uint64(rows), Unit: 2, Grain: 2, // rows of two letters
		Pos: []uint32{0, 3, 1}, Ends: []int32{3}, Closed: []bool{true}, // 0 gets 3, 3 gets 1, 1 gets 0
	}))
	fmt.Println(download(stream, rows, 8))
	// Output: GHabefCD
}

// The primary context, which PyTorch and the CUDA runtime use, needs no [gpu.Context].
func ExampleGather() {
	check(gpu.Available())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	device := must(cu.GetDevice(0))
	check(cu.SetCurrentContext(must(device.RetainPrimaryCtx())))
	defer closed(device.ReleasePrimaryCtx)

	src := []uintptr{uintptr(upload("ab")), uintptr(upload("cde")), uintptr(upload("f")), uintptr(upload("g"))}
	dst := []uintptr{uintptr(must(cu.MemAlloc(3))), uintptr(must(cu.MemAlloc(4)))}
	check(gpu.Gather(0, gpu.StreamHandle(cu.NoStream), letters(), dst, src))
	fmt.Println(download(cu.NoStream, cu.DevicePtr(dst[1]), 4))
	// Output: cdeg
}

// Bytes move between any addresses of a device.
func ExampleMoves() {
	check(gpu.Available())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	device := must(cu.GetDevice(0))
	check(cu.SetCurrentContext(must(device.RetainPrimaryCtx())))
	defer closed(device.ReleasePrimaryCtx)

	from, to := upload("ab..cd.."), upload("xxxx")
	at := func(memory cu.DevicePtr) flatten.Addr {
		return flatten.Addr{Base: flatten.Absolute, Off: uint64(memory)}
	}
	check(gpu.Moves(0, gpu.StreamHandle(cu.NoStream), []flatten.Move{{
		Dst: at(to), Src: at(from), Bytes: 2,
		Axes: []flatten.Axis{{N: 2, DstStep: 2, SrcStep: 4}}, // two letters of every four
	}}))
	fmt.Println(download(cu.NoStream, to, 4))
	// Output: abcd
}
