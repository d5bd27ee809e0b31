package gpu_test

import (
	"runtime"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

// numDevices returns how many devices there are; at least one, or the test fails.
func numDevices(t testing.TB) int {
	t.Helper()
	n, err := gpu.NumDevices()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A bench is a device with its primary context current on the test's thread, a stream
// of it, and memory that is freed at the end of the test.
type bench struct {
	t      testing.TB
	device int
	stream uintptr
}

// onDevice keeps the test's goroutine on its thread until the test ends.
func onDevice(t testing.TB, device int) *bench {
	t.Helper()
	if device >= numDevices(t) {
		t.Skipf("needs %d devices", device+1)
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := &bench{t: t, device: device}
	dev, err := cu.GetDevice(device)
	b.must(err)
	context, err := dev.RetainPrimaryCtx()
	b.must(err)
	t.Cleanup(func() { b.must(dev.ReleasePrimaryCtx()) })
	before, err := cu.CurrentContext()
	b.must(err)
	b.must(cu.SetCurrentContext(context))
	t.Cleanup(func() { b.must(cu.SetCurrentContext(before)) })
	b.stream, err = cudatest.NewStream()
	b.must(err)
	t.Cleanup(func() { b.must(cudatest.DestroyStream(b.stream)) })
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// alloc returns device memory with the given contents, freed at the end of the test.
func (b *bench) alloc(contents []byte) uintptr {
	b.t.Helper()
	memory, err := cu.MemAlloc(int64(max(len(contents), 1)))
	b.must(err)
	b.t.Cleanup(func() { b.must(cu.MemFree(memory)) })
	b.write(uintptr(memory), contents)
	return uintptr(memory)
}

// write waits until the bytes are on the device: a copy from pageable memory returns
// earlier, and b.stream does not wait for the stream that it is on.
func (b *bench) write(to uintptr, contents []byte) {
	b.t.Helper()
	if len(contents) > 0 {
		b.must(cu.MemcpyHtoD(cu.DevicePtr(to), unsafe.Pointer(&contents[0]), int64(len(contents))))
		b.must(cu.Synchronize())
	}
}

func (b *bench) read(into []byte, from uintptr) {
	b.t.Helper()
	if len(into) > 0 {
		b.must(cu.MemcpyDtoH(unsafe.Pointer(&into[0]), cu.DevicePtr(from), int64(len(into))))
	}
}

func (b *bench) wait() {
	b.t.Helper()
	b.must(cudatest.Synchronize(b.stream))
}
