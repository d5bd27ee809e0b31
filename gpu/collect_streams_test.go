package gpu_test

import (
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

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
