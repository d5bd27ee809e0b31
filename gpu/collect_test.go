package gpu_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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

func TestCollectGivesBackWithTorchsCache(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	a, b, d := c.segment(64*mib), c.segment(64*mib), c.segment(64*mib)
	gpu.CollectEnd(id)
	output := gpu.Span{Lo: b.Lo + 512, Hi: b.Hi - 512}
	if !cudatest.Claim(c.claim, output.Lo, output.Hi) {
		t.Fatal("no claim")
	}
	for _, s := range []gpu.Span{a, b, d} {
		c.giveBack(s)
	}
	c.touch(output)
	if got := gpu.CollectMemory(0).Mapped; got > 2*96*mib {
		t.Errorf("got %d MiB mapped under an output of 64 MiB, want 2 chunks at most", got/mib)
	}
	cudatest.Unclaim(c.unclaim, output.Lo, output.Hi)
	gpu.CollectTrim(0)
	if got := fakecuda.Mappings().Physical; got != 0 {
		t.Errorf("got %d bytes of memory after the output, want 0", got)
	}
}

func TestCollectNoticesThatMemoryIsShort(t *testing.T) {
	c := collecting(t, 0)
	gpu.CollectPressed(0)
	id := c.begin()
	s, other := c.segment(20*mib), c.segment(2*mib)
	gpu.CollectEnd(id)
	c.kept(s)
	if gpu.CollectPressed(0) {
		t.Error("after a next context took memory: got true, want false")
	}
	c.giveBack(other)
	if !gpu.CollectPressed(0) || gpu.CollectPressed(0) {
		t.Error("after torch gave memory back: want true, once")
	}
	fakecuda.Limit(24 * mib)
	id = c.begin()
	s = c.segment(24 * mib)
	gpu.CollectEnd(id)
	if !gpu.CollectPressed(0) {
		t.Error("after the driver refused slack: got false, want true")
	}
	c.giveBack(s)
}

func TestCollectWithFewAddresses(t *testing.T) {
	c := collecting(t, 0)
	const outOfMemory = 2
	for _, failures := range []int{1, 2, 3} {
		fakecuda.Reset()
		for range failures {
			fakecuda.Fail("cuMemAddressReserve", 1, outOfMemory)
		}
		id, err := gpu.CollectBegin(0)
		if failures == 3 {
			if !errors.Is(err, gpu.ErrOutOfMemory) {
				t.Errorf("no addresses at all: got %v, want %v", err, gpu.ErrOutOfMemory)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d failures: %v", failures, err)
		}
		s := c.segment(20 * mib)
		gpu.CollectEnd(id)
		c.giveBack(s)
		gpu.CollectTrim(0)
	}
}

func TestCollectMapsAheadWhatTheLastContextUsed(t *testing.T) {
	c := collecting(t, 0)
	for _, test := range []struct {
		sizes       []int64 // of segments, in MiB
		calls       int     // in a context after one like it
		small, more int64   // mapped by 2 MiB after it, in MiB, and after that
	}{
		{[]int64{2}, 1, 6, 6},
		{[]int64{2, 20, 20, 20}, 1, 94, 6},     // with half as much slack
		{[]int64{100, 100, 2, 500}, 13, 98, 6}, // with an eighth
	} {
		for try := range 4 {
			if try > 1 {
				test.sizes = []int64{2}
			}
			fakecuda.Reset()
			id := c.begin()
			var all []gpu.Span
			for _, size := range test.sizes {
				all = append(all, c.segment(size*mib))
			}
			mapped := gpu.CollectMemory(0).Mapped / mib
			switch {
			case try == 1 && calls("cuMemCreate") != test.calls:
				t.Errorf("%v MiB again: got %d mapping calls, want %d", test.sizes, calls("cuMemCreate"), test.calls)
			case try == 2 && mapped != test.small || try == 3 && mapped != test.more:
				t.Errorf("2 MiB, try %d: got %d MiB mapped, want %d, then %d", try, mapped, test.small, test.more)
			case try > 0 && calls("cuMemAddressReserve") != 0:
				t.Error("addresses were reserved again")
			}
			gpu.CollectEnd(id)
			for _, s := range all {
				c.giveBack(s)
			}
		}
	}
}

func TestCollectCanary(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	s := c.segment(64 * mib)
	gpu.CollectEnd(id)
	c.kept(s)
	if gpu.CollectMemory(0).Free == 0 {
		t.Fatal("nothing was kept")
	}
	gpu.CollectArm(0)
	canary := c.segment(2 * mib)
	if !gpu.CollectArmed(0) {
		t.Fatal("not armed")
	}
	if lo, hi, _, err := gpu.Allocation(0, canary.Lo); err == nil && hi > lo && gpu.CollectMemory(0).Segments != 0 {
		t.Errorf("the canary counts as a segment: %+v", gpu.CollectMemory(0))
	}
	c.kept(canary)
	if gpu.CollectArmed(0) || gpu.CollectMemory(0).Free == 0 {
		t.Errorf("after a next context took the canary: armed %v, %+v; want it gone and the memory kept", gpu.CollectArmed(0), gpu.CollectMemory(0))
	}
	gpu.CollectArm(0)
	canary = c.segment(2 * mib)
	c.giveBack(canary)
	if got := fakecuda.Mappings().Physical; got != 0 {
		t.Errorf("torch gave its cache back: got %d bytes kept, want 0", got)
	}
}

func TestCollectShortOfMemoryTakesWhatIsFree(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	a, b := c.segment(100*mib), c.segment(2*mib)
	gpu.CollectEnd(id)
	c.kept(a)
	fakecuda.Limit(fakecuda.Mappings().Physical + 10*mib)
	id = c.begin()
	d := c.segment(80 * mib)
	c.touch(d)
	c.touch(b)
	gpu.CollectEnd(id)
	if at := cudatest.Alloc(c.alloc, 80*mib, 0, 0); at != 0 {
		t.Errorf("got a segment at %#x beyond the memory", at)
	}
	c.giveBack(b)
	c.giveBack(d)
}

func TestCollectSlackShrinksWhereMemoryIsShort(t *testing.T) {
	c := collecting(t, 0)
	fakecuda.Limit(20 * mib)
	id := c.begin()
	s := c.segment(20 * mib)
	c.touch(s)
	if at := cudatest.Alloc(c.alloc, 2*mib, 0, 0); at != 0 {
		t.Errorf("got a segment at %#x beyond the memory", at)
	}
	gpu.CollectEnd(id)
	if room := gpu.CollectRoom(id, 0, true); len(room) != 0 {
		t.Errorf("got room %v, want none", room)
	}
	fakecuda.Limit(0)
	if room := gpu.CollectRoom(id, 0, true); len(room) != 1 || room[0].Lo != s.Hi || room[0].Hi < s.Hi+4*mib {
		t.Errorf("got room %v, want slack of 4 MiB from %#x on", room, s.Hi)
	}
	c.giveBack(s)
}

func TestCollectRoom(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	a, b, d := c.segment(20*mib), c.segment(20*mib), c.segment(20*mib)
	if room := gpu.CollectRoom(id, 0, true); len(room) != 0 {
		t.Errorf("open range: got room %v, want none", room)
	}
	gpu.CollectEnd(id)
	c.kept(b)
	_, _, hi, _ := gpu.CollectRange(a.Lo)
	want := []gpu.Span{b, {Lo: d.Hi, Hi: hi}}
	for _, prepare := range []bool{false, true} {
		if got := gpu.CollectRoom(id, 0, prepare); !slices.Equal(got, want) {
			t.Errorf("prepare %v: got room %x, want %x", prepare, got, want)
		}
	}
	if !cudatest.Claim(c.claim, b.Lo+mib, b.Lo+2*mib) || !cudatest.Claim(c.claim, b.Lo+mib, b.Lo+3*mib) {
		t.Fatal("no claim")
	}
	if cudatest.Claim(c.claim, d.Lo, hi+1) || cudatest.Claim(c.claim, d.Lo, d.Lo) || cudatest.Claim(c.claim, 1<<20, 2<<20) {
		t.Error("claimed what is not mapped, or nothing")
	}
	want = []gpu.Span{{Lo: b.Lo, Hi: b.Lo + mib}, {Lo: b.Lo + 3*mib, Hi: b.Hi}, {Lo: d.Hi, Hi: hi}}
	if got := gpu.CollectRoom(id, 0, true); !slices.Equal(got, want) {
		t.Errorf("beside claims: got room %x, want %x", got, want)
	}
	if got := gpu.CollectClaimed(id); len(got) != 2 {
		t.Errorf("got claims %x, want 2", got)
	}
	cudatest.Unclaim(c.unclaim, b.Lo+mib, b.Lo+3*mib)
	cudatest.Unclaim(c.unclaim, b.Lo+mib, b.Lo+2*mib)
	cudatest.Unclaim(c.unclaim, b.Lo+mib, b.Lo+2*mib) // once too often: nothing
	c.giveBack(a)
	c.giveBack(d)
}

func TestCollectWaitsForOtherStreams(t *testing.T) {
	c := collecting(t, 0)
	streams := make([]uintptr, 12) // more than a range remembers
	for i := range streams {
		var err error
		if streams[i], err = cudatest.NewStream(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := cudatest.DestroyStream(streams[i]); err != nil {
				t.Error(err)
			}
		}()
	}
	waits := func() int { return calls("cuStreamSynchronize") + calls("cuCtxSynchronize") }
	use := func(stream uintptr) {
		id := c.begin()
		s := c.segmentOn(2*mib, stream)
		gpu.CollectEnd(id)
		gpu.CollectKeep(true)
		c.giveBackOn(s, stream)
		gpu.CollectKeep(false)
	}
	use(streams[0])
	fakecuda.Reset()
	use(streams[0])
	if got := waits(); got != 0 {
		t.Errorf("same stream: got %d waits, want none", got)
	}
	use(streams[1])
	if got := waits(); got != 1 {
		t.Errorf("another stream: got %d waits, want 1", got)
	}

	id := c.begin()
	var all []gpu.Span
	for _, stream := range streams {
		all = append(all, c.segmentOn(2*mib, stream))
	}
	gpu.CollectEnd(id)
	fakecuda.Reset()
	for i, s := range all {
		gpu.CollectKeep(true)
		c.giveBackOn(s, streams[i])
		gpu.CollectKeep(false)
	}
	gpu.CollectTrim(0)
	if calls("cuCtxSynchronize") != 1 {
		t.Errorf("many streams: got %v, want one wait for the device", fakecuda.Log())
	}
}

func TestCollectKeepsMemoryWhileAStreamIsCaptured(t *testing.T) {
	c := collecting(t, 0)
	stream, err := cudatest.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	id := c.begin()
	s := c.segmentOn(2*mib, stream)
	gpu.CollectEnd(id)
	if err := cudatest.BeginCapture(stream); err != nil {
		t.Fatal(err)
	}
	c.giveBackOn(s, stream)
	if gpu.CollectMemory(0).Mapped == 0 {
		t.Error("memory went that a captured stream used")
	}
	graph, err := cudatest.EndCapture(stream)
	if err != nil {
		t.Fatalf("the capture did not survive: %v", err)
	}
	if err := graph.Destroy(); err != nil {
		t.Error(err)
	}
	gpu.CollectTrim(0)
	if err := cudatest.DestroyStream(stream); err != nil {
		t.Error(err)
	}
}

func TestCollectOutputsStreamsAreWaitedFor(t *testing.T) {
	c := collecting(t, 0)
	id := c.begin()
	s := c.segment(2 * mib)
	gpu.CollectEnd(id)
	cudatest.Claim(c.claim, s.Lo, s.Hi)
	stream, err := cudatest.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	gpu.CollectUse(s.Lo, stream)
	c.kept(s)
	cudatest.Unclaim(c.unclaim, s.Lo, s.Hi)
	fakecuda.Reset()
	id = c.begin()
	c.giveBack(c.segment(2 * mib))
	gpu.CollectEnd(id)
	if calls("cuStreamSynchronize") == 0 {
		t.Error("memory of an output was used again without waiting for its reader")
	}
	if err := cudatest.DestroyStream(stream); err != nil {
		t.Error(err)
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
func (c *collector) script() {
	id, err := gpu.CollectBegin(c.device)
	if err != nil {
		return
	}
	var live []gpu.Span
	for _, bytes := range []int64{2 * mib, 80 * mib, 20 * mib} {
		if at := cudatest.Alloc(c.alloc, bytes, c.device, 1); at != 0 {
			live = append(live, gpu.Span{Lo: at, Hi: at + uint64(bytes)})
		}
	}
	gpu.CollectEnd(id)
	gpu.CollectRoom(id, 0, true)
	for _, s := range live {
		if cudatest.Claim(c.claim, s.Lo, s.Lo+mib) {
			defer cudatest.Unclaim(c.unclaim, s.Lo, s.Lo+mib)
		}
		c.giveBackOn(s, 1)
	}
	if id, err := gpu.CollectBegin(c.device); err == nil {
		if at := cudatest.Alloc(c.alloc, 30*mib, c.device, 0); at != 0 {
			c.giveBack(gpu.Span{Lo: at, Hi: at + 30*mib})
		}
		gpu.CollectEnd(id)
	}
}

// Every driver call fails once, with an error that passes and with out of memory;
// collecting checks that nothing is left.
func TestCollectFailures(t *testing.T) {
	for _, code := range []int{2, 999} {
		for nth := 1; ; nth++ {
			c := collecting(t, 0)
			fakecuda.Fail(fakecuda.Any, nth, code)
			c.script()
			failed := len(fakecuda.Log()) >= nth
			fakecuda.Reset()
			gpu.CollectTrim(0)
			if got := fakecuda.Mappings(); got.Physical != 0 {
				t.Fatalf("call %d fails with %d: %d bytes are left", nth, code, got.Physical)
			}
			if !failed {
				if nth < 40 {
					t.Errorf("the script makes %d calls, want more", nth)
				}
				break
			}
		}
	}
}

func TestCollectThreads(t *testing.T) {
	collecting(t, 0)
	var threads sync.WaitGroup
	for n := range 8 {
		threads.Add(1)
		go func() {
			defer threads.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			random := rand.New(rand.NewPCG(7, uint64(n)))
			c := &collector{t: t, device: 0}
			c.alloc, c.free = gpu.CollectFunctions()
			c.claim, c.unclaim = gpu.CollectClaims()
			for range 20 {
				id, err := gpu.CollectBegin(0)
				if err != nil {
					t.Error(err)
					return
				}
				var mine []gpu.Span
				for range 1 + random.IntN(6) {
					bytes := int64(2*mib) << random.IntN(5)
					at := cudatest.Alloc(c.alloc, bytes, 0, 0)
					if got, _, _, _ := gpu.CollectRange(at); got != id {
						t.Errorf("segment at %#x lies in range %d, want %d", at, got, id)
					}
					mine = append(mine, gpu.Span{Lo: at, Hi: at + uint64(bytes)})
				}
				gpu.CollectEnd(id)
				gpu.CollectKeep(random.IntN(2) == 0)
				for _, s := range mine {
					c.giveBack(s)
				}
			}
			gpu.CollectKeep(false)
		}()
	}
	threads.Wait()
}

// model is what should be so: who lives where, by addresses.
type model struct {
	*collector
	random   *rand.Rand
	open     int64
	segments []gpu.Span
	claims   []gpu.Span
}

func overlap(a, b gpu.Span) bool { return a.Lo < b.Hi && b.Lo < a.Hi }

// any takes a random span out of a list.
func (m *model) any(list *[]gpu.Span) (gpu.Span, bool) {
	if len(*list) == 0 {
		return gpu.Span{}, false
	}
	i := m.random.IntN(len(*list))
	s := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return s, true
}

func (m *model) step() {
	switch m.random.IntN(12) {
	case 0:
		gpu.CollectEnd(m.open)
		m.open = m.begin()
	case 1, 2, 3, 4:
		m.allocate()
	case 5, 6, 7:
		gpu.CollectKeep(m.random.IntN(3) > 0)
		if s, ok := m.any(&m.segments); ok {
			m.giveBackOn(s, uintptr(m.random.IntN(2)))
		}
		gpu.CollectKeep(false)
	case 8, 9:
		m.claimSome()
	case 10:
		if s, ok := m.any(&m.claims); ok {
			cudatest.Unclaim(m.unclaim, s.Lo, s.Hi)
		}
	case 11:
		m.limit()
	}
}

func (m *model) allocate() {
	bytes := []int64{2 * mib, 20 * mib, 6 * mib, 130 * mib}[m.random.IntN(4)]
	at := cudatest.Alloc(m.alloc, bytes, m.device, uintptr(m.random.IntN(2)))
	if at == 0 {
		return // short of memory
	}
	s := gpu.Span{Lo: at, Hi: at + uint64(bytes)}
	for _, other := range append(slices.Clone(m.segments), m.claims...) {
		if overlap(s, other) {
			m.t.Fatalf("segment %x overlaps %x", s, other)
		}
	}
	if id, _, _, ok := gpu.CollectRange(at); !ok || id != m.open {
		m.t.Fatalf("segment %x lies in range %d, want the open one, %d", s, id, m.open)
	}
	m.segments = append(m.segments, s)
}

// claimSome claims a part of a segment and what is behind it, or room.
func (m *model) claimSome() {
	if len(m.segments) == 0 {
		return
	}
	s := m.segments[m.random.IntN(len(m.segments))]
	id, _, hi, _ := gpu.CollectRange(s.Lo)
	if room := gpu.CollectRoom(id, 0, false); len(room) > 0 && m.random.IntN(2) == 0 && id != m.open {
		s = room[m.random.IntN(len(room))]
	}
	claim := gpu.Span{Lo: s.Lo + m.random.Uint64N(s.Hi-s.Lo)}
	claim.Hi = claim.Lo + 1 + m.random.Uint64N(hi-claim.Lo)
	if cudatest.Claim(m.claim, claim.Lo, claim.Hi) {
		m.claims = append(m.claims, claim)
	}
}

func (m *model) limit() {
	if m.random.IntN(2) == 0 {
		fakecuda.Limit(0)
	} else {
		fakecuda.Limit(fakecuda.Mappings().Physical + m.random.IntN(100*mib) + 1)
	}
}

func (m *model) check() {
	m.t.Helper()
	for _, s := range append(slices.Clone(m.segments), m.claims...) {
		m.touch(s)
	}
	var bytes int64
	for _, s := range m.segments {
		bytes += int64(s.Hi - s.Lo)
	}
	memory := gpu.CollectMemory(m.device)
	if memory.Segments != bytes || memory.Mapped != int64(fakecuda.Mappings().Bytes) || memory.Free > memory.Mapped-memory.Segments {
		m.t.Fatalf("got %+v, want %d in segments and %d mapped", memory, bytes, fakecuda.Mappings().Bytes)
	}
}

func (m *model) finish() {
	gpu.CollectEnd(m.open)
	for _, s := range m.segments {
		m.giveBack(s)
	}
	for _, s := range m.claims {
		cudatest.Unclaim(m.unclaim, s.Lo, s.Hi)
	}
}

func TestCollectRandomly(t *testing.T) {
	for seed := range uint64(30) {
		m := &model{collector: collecting(t, 0), random: rand.New(rand.NewPCG(1, seed))}
		m.open = m.begin()
		for range 150 {
			m.step()
			m.check()
		}
		m.finish()
		gpu.CollectTrim(0)
		if got := fakecuda.Mappings(); got.Physical != 0 {
			t.Fatalf("seed %d: %d bytes are left", seed, got.Physical)
		}
	}
}

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
func TestCollectStress(t *testing.T) {
	fakeOnly(t)
	program := filepath.Join(t.TempDir(), "stress")
	sources := []string{"testdata/collect_stress.c", "collect.c", "collect_map.c", "collect_range.c", "launch.c"}
	flags := []string{"-O1", "-g", "-I.", "-o", program}
	run(t, exec.Command("gcc", slices.Concat(flags, sources, []string{"-Lfakecuda/build", "-l:libcuda.so.1", "-lpthread"})...))
	fake, err := filepath.Abs("fakecuda/build")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+fake)
	run(t, cmd)
}

// A job fits into its slack and the gaps of temporaries, or moves few bytes twice: half
// as much slack as what is used, up to 64 MiB; then an eighth, up to 512 MiB.
func TestCollectSlack(t *testing.T) {
	c := collecting(t, 0)
	for _, test := range []struct{ used, slack int64 }{{2, 4}, {8, 4}, {20, 10}, {100, 50}, {128, 64}, {400, 64}, {1600, 200}, {6000, 512}} {
		id := c.begin()
		s := c.segment(test.used * mib)
		gpu.CollectEnd(id)
		room := gpu.CollectRoom(id, 0, true)
		if len(room) != 1 || room[0].Lo != s.Hi || int64(room[0].Hi-s.Hi) < test.slack*mib {
			t.Errorf("%d MiB: got room %x, want slack of %d MiB from %#x on", test.used, room, test.slack, s.Hi)
		}
		c.giveBack(s)
		if got := fakecuda.Mappings().Physical; got != 0 {
			t.Errorf("%d MiB: torch gave its cache back, %d bytes are kept", test.used, got)
		}
	}
}

// What a context calls without Go does what the functions with Go do.
func TestCollectSwitches(t *testing.T) {
	c := collecting(t, 0)
	ready, reopen, goOn := gpu.CollectSwitches()
	for _, device := range []int{-1, 1000} {
		if id := cudatest.Reopen(reopen, device); id != 0 {
			t.Errorf("device %d: got range %d, want none", device, id)
		}
		if cudatest.Ready(ready, device) || cudatest.GoOn(goOn, device, 0, 0) {
			t.Errorf("device %d is short of memory, or has some", device)
		}
	}
	gpu.CollectEnd(c.begin())
	gpu.CollectPressed(0)
	var last int64
	for range 2 {
		id := cudatest.Reopen(reopen, 0)
		if id <= last {
			t.Fatalf("got range %d after %d", id, last)
		}
		last = id
		a, b := c.segment(64*mib), c.segment(2*mib)
		if got, _, _, _ := gpu.CollectRange(a.Lo); got != id {
			t.Errorf("segment lies in range %d, want %d", got, id)
		}
		free := gpu.CollectMemory(0).Free > 0
		if got := cudatest.GoOn(goOn, 0, id, 0); got != free {
			t.Errorf("got %v, want whether there is free memory, %v", got, free)
		}
		if at := cudatest.Alloc(c.alloc, 2*mib, 0, 0); at != 0 {
			t.Errorf("a closed range gave a segment at %#x", at)
		}
		if cudatest.Ready(ready, 0) {
			t.Error("nothing was short: got true, want false")
		}
		c.giveBack(a) // it keeps
		if gpu.CollectMemory(0).Free == 0 || !cudatest.GoOn(goOn, 0, id, 0) {
			t.Error("memory that nobody watches: got false, want true")
		}
		c.kept(b)
	}
	fakecuda.Fail("cuMemAddressReserve", 1, 999)
	open := []int64{cudatest.Reopen(reopen, 0), cudatest.Reopen(reopen, 0)}
	if open[0] == 0 || open[1] != 0 {
		t.Errorf("got ranges %v, want one that was there, and none where addresses are refused", open)
	}
	gpu.CollectKeep(false)
	outer := cudatest.Reopen(reopen, 0)
	inner := cudatest.Reopen(reopen, 0)
	cudatest.GoOn(goOn, 0, inner, outer)
	s := c.segment(2 * mib)
	if got, _, _, _ := gpu.CollectRange(s.Lo); got != outer {
		t.Errorf("segment lies in range %d, want the outer one, %d", got, outer)
	}
	for _, id := range []int64{outer, open[0]} {
		cudatest.GoOn(goOn, 0, id, 0)
	}
	c.giveBack(s)
	if !cudatest.Ready(ready, 0) {
		t.Error("torch gave memory back: got false, want true")
	}
	gpu.CollectKeep(false)
}
