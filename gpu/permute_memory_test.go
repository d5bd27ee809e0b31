package gpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

func TestPermuteAllocatesNothing(t *testing.T) {
	b, p, _ := smallShuffle(t, 0)
	b.must(gpu.Permute(0, b.stream, p))
	b.wait()
	held := gpu.Held(0)
	if held < p.TableBytes() {
		t.Errorf("got %d bytes held, want at least %d", held, p.TableBytes())
	}
	if n := testing.AllocsPerRun(20, func() { b.must(gpu.Permute(0, b.stream, p)) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	b.wait()
	if now := gpu.Held(0); now != held {
		t.Errorf("got %d bytes held after more calls, want %d", now, held)
	}
}

func TestHeldOpensNoDriver(t *testing.T) {
	fakeOnly(t)
	fake, err := filepath.Abs("fakecuda/build")
	if err != nil {
		t.Fatal(err)
	}
	if got := runChild(t, "held", "LD_LIBRARY_PATH="+fake); strings.TrimSpace(got) != "0 false" {
		t.Errorf("got %q, want 0 bytes and no driver", got)
	}
}

func TestHeld(t *testing.T) {
	b, p, _ := smallShuffle(t, 0)
	gpu.Unload(0)
	if got := gpu.Held(0); got != 0 {
		t.Errorf("before the first permutation: got %d bytes, want 0", got)
	}
	b.must(gpu.Permute(0, b.stream, p))
	b.wait()
	if got, most := gpu.Held(0), p.TableBytes()+2<<20; got < p.TableBytes() || got > most {
		t.Errorf("got %d bytes, want %d to %d", got, p.TableBytes(), most)
	}
	for _, device := range []int{-1, 99} {
		if got := gpu.Held(device); got != 0 {
			t.Errorf("device %d: got %d bytes, want 0", device, got)
		}
	}
}

func TestPermuteUsesItsMemoryAgain(t *testing.T) {
	fakeOnly(t)
	b, p, verify := smallShuffle(t, 0)
	other, err := cudatest.NewStream()
	b.must(err)
	defer func() { b.must(cudatest.DestroyStream(other)) }()
	b.must(gpu.Permute(0, b.stream, p))
	verify()
	before := fakecuda.Alive()
	for _, stream := range []uintptr{b.stream, other, 0, b.stream} {
		fakecuda.Reset()
		b.must(gpu.Permute(0, stream, p))
		verify()
		if alive := fakecuda.Alive(); alive != before {
			t.Errorf("got %+v alive, want %+v", alive, before)
		}
	}
	// While the device is behind, calls get memory of their own, up to a limit.
	for range 20 {
		fakecuda.Fail("cuEventQuery", 1, 600)
		fakecuda.Fail("cuEventQuery", 2, 600)
		b.must(gpu.Permute(0, b.stream, p))
		verify()
		fakecuda.Reset()
	}
	if alive := fakecuda.Alive(); alive.Bytes != before.Bytes || alive.Pinned > 4*before.Pinned {
		t.Errorf("got %+v alive, want %+v and at most 4 times as much pinned", alive, before)
	}
}

// A table is uploaded on a stream of its own, which waits for the last use of the memory and not
// for the caller's stream; the launch waits for it.
func TestPermuteUploadsAhead(t *testing.T) {
	fakeOnly(t)
	b, p, verify := smallShuffle(t, 0)
	b.must(gpu.Permute(0, b.stream, p))
	verify()
	fakecuda.Reset()
	b.must(gpu.Permute(0, b.stream, p))
	verify()
	var got []string
	var stream string
	for _, line := range fakecuda.Log() {
		name, rest, _ := strings.Cut(line, " ")
		switch name {
		case "cuMemcpyHtoDAsync":
			_, stream, _ = strings.Cut(rest, "stream ")
		case "cuStreamWaitEvent", "cuEventRecord", "cuLaunchCooperativeKernel":
		default:
			continue
		}
		got = append(got, name)
	}
	want := []string{
		"cuStreamWaitEvent", "cuMemcpyHtoDAsync", "cuEventRecord", // of the pinned memory
		"cuEventRecord", "cuStreamWaitEvent", "cuLaunchCooperativeKernel", "cuEventRecord",
	}
	if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if stream == "" || stream == fmt.Sprintf("%#x", b.stream) {
		t.Errorf("got an upload on stream %q, the caller's is %#x", stream, b.stream)
	}
}

// The word of a barrier is zeroed once, and counts on past 2^32.
func TestPermuteCountsOn(t *testing.T) {
	b, p, verify := smallShuffle(t, 0)
	gpu.Unload(0)
	b.must(gpu.Permute(0, b.stream, p))
	verify()
	at := gpu.SetArrivals(0, math.MaxUint32-1)
	if len(at) != 1 {
		t.Fatalf("got %d words, want 1", len(at))
	}
	b.write(at[0], binary.LittleEndian.AppendUint32(nil, math.MaxUint32-1))
	if onFake {
		fakecuda.Reset()
	}
	for range 5 {
		b.must(gpu.Permute(0, b.stream, p))
		verify()
	}
	if !onFake {
		return
	}
	log := strings.Join(fakecuda.Log(), "\n")
	if n := strings.Count(log, "cuLaunchCooperativeKernel"); n != 5 || strings.Contains(log, "cuMemsetD32Async") {
		t.Errorf("got %d cooperative launches, want 5, and none zeroed:\n%s", n, log)
	}
}
