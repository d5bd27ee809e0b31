package gpu_test

import (
	"slices"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

const mib = 1 << 20

// A collector plays torch's part: it asks for segments and gives them back.

type collector struct {
	t              testing.TB
	device         int
	alloc, free    uintptr
	claim, unclaim uintptr
}

// collecting starts a test on a device without memory in ranges, and sees to it that none

// is left. The goroutine stays on its thread, which is what has a current range.

func collecting(t testing.TB, device int) *collector {
	t.Helper()
	fakeOnlyTB(t)
	onDevice(t, device)
	c := &collector{t: t, device: device}
	c.alloc, c.free = gpu.CollectFunctions()
	c.claim, c.unclaim = gpu.CollectClaims()
	fakecuda.Reset()
	canaries := fakecuda.Mappings().Reservations
	t.Cleanup(func() {
		fakecuda.Reset()
		fakecuda.Limit(0)
		gpu.CollectSelect(device, 0)
		gpu.CollectTrim(device)
		if got := fakecuda.Mappings(); got.Physical != 0 || got.Bytes != 0 || got.Reservations > canaries+1 {
			t.Errorf("left behind: %+v, want no memory and the %d reservations before, or a canary's more", got, canaries)
		}
	})
	return c
}

func fakeOnlyTB(t testing.TB) {
	t.Helper()
	if !onFake {
		t.Skip("needs the fake driver")
	}
}

func (c *collector) begin() int64 {
	c.t.Helper()
	id, err := gpu.CollectBegin(c.device)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *collector) segment(bytes int64) gpu.Span { return c.segmentOn(bytes, 0) }

func (c *collector) segmentOn(bytes int64, stream uintptr) gpu.Span {
	c.t.Helper()
	at := cudatest.Alloc(c.alloc, bytes, c.device, stream)
	if at == 0 {
		c.t.Fatalf("no segment of %d MiB", bytes/mib)
	}
	return gpu.Span{Lo: at, Hi: at + uint64(bytes)}
}

func (c *collector) giveBack(s gpu.Span) { c.giveBackOn(s, 0) }

func (c *collector) giveBackOn(s gpu.Span, stream uintptr) {
	cudatest.Free(c.free, s.Lo, int64(s.Hi-s.Lo), c.device, stream)
}

// kept gives segments back as a next context does.

func (c *collector) kept(segments ...gpu.Span) {
	gpu.CollectKeep(true)
	defer gpu.CollectKeep(false)
	for _, s := range segments {
		c.giveBack(s)
	}
}

// touch writes a byte to each end of a span and reads them again: they are mapped.

func (c *collector) touch(s gpu.Span) {
	c.t.Helper()
	(&bench{t: c.t}).write(uintptr(s.Lo), []byte{1})
	(&bench{t: c.t}).write(uintptr(s.Hi-1), []byte{2})
	got := make([]byte, 1)
	(&bench{t: c.t}).read(got, uintptr(s.Hi-1))
	if got[0] != 2 {
		c.t.Fatalf("byte %#x: got %d, want 2", s.Hi-1, got[0])
	}
}

// calls counts driver calls of a name since the last reset.

func calls(name string) int {
	n := 0
	for _, call := range fakecuda.Log() {
		if call == name {
			n++
		}
	}
	return n
}

func TestCollectSegmentsAdjoinInOneRange(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	var all []gpu.Span
	for i, bytes := range []int64{2 * mib, 20 * mib, 2 * mib, 34 * mib, 200 * mib, 2 * mib} {
		s := c.segment(bytes)
		c.touch(s)
		if i > 0 && s.Lo != all[i-1].Hi {
			t.Errorf("segment %d starts at %#x, want %#x", i, s.Lo, all[i-1].Hi)
		}
		all = append(all, s)
		got, lo, hi, ok := gpu.CollectRange(s.Lo)
		if got != id || lo != all[0].Lo || hi < s.Hi+4*mib || !ok {
			t.Errorf("range of segment %d: got %d [%#x, %#x) %v, want %d from %#x on and 4 MiB slack", i, got, lo, hi, ok, id, all[0].Lo)
		}
	}
	if got := calls("cuMemCreate"); got > 10 {
		t.Errorf("got %d mapping calls for 260 MiB, want 10 at most", got)
	}
	memory := gpu.CollectMemory(0)
	if memory.Segments != 260*mib || memory.Mapped < 264*mib || memory.Mapped > 260*mib+96*mib {
		t.Errorf("got %+v, want 260 MiB in segments and up to 96 MiB more mapped", memory)
	}
	gpu.CollectEnd(id)
	if at := cudatest.Alloc(c.alloc, 2*mib, 0, 0); at != 0 {
		t.Errorf("a closed range gave a segment at %#x", at)
	}
	for _, s := range all {
		c.giveBack(s)
	}
	if _, _, _, ok := gpu.CollectRange(all[0].Lo); ok {
		t.Error("the range is still there after everything was freed")
	}
}

func TestCollectSecondContextMapsNothing(t *testing.T) {
	c := collecting(t, 1)
	id := c.begin()
	first := []gpu.Span{c.segment(20 * mib), c.segment(50 * mib)}
	gpu.CollectEnd(id)
	for range 3 {
		fakecuda.Reset()
		c.kept(first...)
		next := c.begin()
		if next == id {
			t.Errorf("id %d came back", id)
		}
		again := []gpu.Span{c.segment(20 * mib), c.segment(50 * mib)}
		if !slices.Equal(again, first) {
			t.Errorf("got segments %v, want those of the first context, %v", again, first)
		}
		if n := calls("cuMemCreate") + calls("cuMemMap") + calls("cuMemUnmap"); n != 0 {
			t.Errorf("got %d mapping calls, want none", n)
		}
		gpu.CollectEnd(next)
		id = next
	}
	c.giveBack(first[0])
	c.giveBack(first[1])
}

func TestCollectLivingContentGetsItsOwnRange(t *testing.T) {
	for _, kind := range []string{"segment", "claim"} {
		t.Run(kind, func(t *testing.T) {
			c := collecting(t, 0)
			id := c.begin()
			a, b := c.segment(20*mib), c.segment(20*mib)
			gpu.CollectEnd(id)
			if kind == "claim" && !cudatest.Claim(c.claim, b.Lo+100, b.Hi-100) {
				t.Fatal("no claim")
			}
			c.kept(a)
			if kind == "claim" {
				c.kept(b)
			}
			other := c.begin()
			s := c.segment(2 * mib)
			if s.Lo < b.Hi && s.Hi > a.Lo {
				t.Errorf("new segment %v lies in the range of what lives, %v", s, b)
			}
			gpu.CollectEnd(other)
			c.giveBack(s)
			c.touch(b)
			if kind == "claim" {
				cudatest.Unclaim(c.unclaim, b.Lo+100, b.Hi-100)
			} else {
				c.giveBack(b)
			}
			gpu.CollectTrim(0)
		})
	}
}

func TestCollectBadCalls(t *testing.T) {
	c := collecting(t, 0)
	if _, err := gpu.CollectBegin(99); err == nil {
		t.Error("device 99: got no error")
	}
	for _, device := range []int{-1, 0, 99, 1000} {
		if at := cudatest.Alloc(c.alloc, 2*mib, device, 0); at != 0 {
			t.Errorf("device %d without a range: got %#x, want 0", device, at)
		}
		cudatest.Free(c.free, 12345, 2*mib, device, 0)
	}
	id := c.begin()
	for _, bytes := range []int64{0, -5, 1 << 60, 1<<63 - 1} {
		if at := cudatest.Alloc(c.alloc, bytes, 0, 0); at != 0 {
			t.Errorf("%d bytes: got %#x, want 0", bytes, at)
		}
	}
	s := c.segment(2 * mib)
	c.giveBack(gpu.Span{Lo: s.Lo + 512, Hi: s.Hi}) // not a segment
	c.touch(s)
	gpu.CollectEnd(id)
	gpu.CollectEnd(id)
	gpu.CollectEnd(-1)
	c.giveBack(s)
	c.giveBack(s)
}

// script uses all there is, and tolerates that memory is refused.

// Every driver call fails once, with an error that passes and with out of memory;

// collecting checks that nothing is left.

// model is what should be so: who lives where, by addresses.

// any takes a random span out of a list.

// claimSome claims a part of a segment and what is behind it, or room.

// The memory must be there for the kernels too, and copies may cross mappings.

func TestCollectedMemoryIsDeviceMemory(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	s := c.segment(80 * mib)
	gpu.CollectEnd(id)
	contents := []byte(strings.Repeat("flat", 20*mib))
	b := &bench{t: t}
	b.write(uintptr(s.Lo), contents)
	got := make([]byte, 3*mib)
	b.read(got, uintptr(s.Lo)+63*mib)
	if string(got) != string(contents[:len(got)]) {
		t.Error("wrong bytes across mappings")
	}
	if err := cu.MemFree(cu.DevicePtr(s.Lo)); err == nil {
		t.Error("cuMemFree freed mapped memory")
	}
	c.giveBack(s)
}

// Threads that are not Go's, as torch's are.

// A job fits into its slack and the gaps of temporaries, or moves few bytes twice: half

// as much slack as what is used, up to 64 MiB; then an eighth, up to 512 MiB.

// What a context calls without Go does what the functions with Go do.
