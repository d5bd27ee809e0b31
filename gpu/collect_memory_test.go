package gpu_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

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
