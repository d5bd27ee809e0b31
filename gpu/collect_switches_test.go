package gpu_test

import (
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

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
