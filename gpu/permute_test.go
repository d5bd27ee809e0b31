package gpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

// A shuffle is a permutation of units in a buffer, whose origin counts from the
// buffer's payload.
type shuffle struct {
	memory buffer
	perm   flatten.Permutation
}

// newShuffle makes a random one: slots of unit bytes, gap bytes apart, in chains of at most
// `longest` positions. Some slots stay out of it.
func newShuffle(r *rand.Rand, unit, gap int64, slots, longest, align int) *shuffle {
	step := unit + gap
	grain := int64(1) << min(bits.TrailingZeros64(uint64(step)), 12)
	s := &shuffle{memory: newBuffer(r, step*int64(slots)-gap, align, 64)}
	s.perm = flatten.Permutation{Unit: unit, Grain: grain}
	order := r.Perm(slots)
	for len(order) > 0 {
		n := min(1+r.IntN(longest), len(order))
		if r.IntN(10) > 0 {
			s.chain(order[:n], step/grain, r.IntN(3) > 0)
		}
		order = order[n:]
	}
	return s
}

// chain appends a chain of slots.
func (s *shuffle) chain(slots []int, step int64, closed bool) {
	for _, slot := range slots {
		s.perm.Pos = append(s.perm.Pos, uint32(int64(slot)*step))
	}
	s.perm.Ends = append(s.perm.Ends, int32(len(s.perm.Pos)))
	s.perm.Closed = append(s.perm.Closed, closed)
}

// apply does it the plain way in a copy of the buffer.
func (s *shuffle) apply() []byte {
	p := s.perm
	p.Origin = uint64(s.memory.lo)
	now := slices.Clone(s.memory.all)
	plan := flatten.InPlace{Steps: []flatten.Step{{Kind: flatten.Permute, Perm: &p}}}
	plan.Run(0, space(now), 1)
	return now
}

// A space is memory that begins at address 0.
type space []byte

func (s space) At(a flatten.Addr, n int64) []byte { return s[a.Off:][:n:n] }

// A permuter is gpu.Permute, or something that should do the same.
type permuter func(device int, stream uintptr, p *flatten.Permutation) error

// verifyShuffle runs a shuffle on a device and compares all memory.
func verifyShuffle(t *testing.T, device int, permute permuter, s *shuffle) {
	t.Helper()
	b := onDevice(t, device)
	want := s.apply()
	at := b.placeAll([]buffer{s.memory})[0]
	s.perm.Origin = uint64(at) + uint64(s.memory.lo)
	b.must(permute(device, b.stream, &s.perm))
	b.wait()
	got := make([]byte, len(want))
	b.read(got, at)
	if i := firstDifference(got, want); i >= 0 {
		t.Fatalf("byte %d of %d: got %#x, want %#x", i-s.memory.lo, s.memory.hi-s.memory.lo, got[i], want[i])
	}
}

func TestPermute(t *testing.T) {
	for device := range numDevices(t) {
		t.Run(fmt.Sprintf("device %d", device), func(t *testing.T) { conformPermute(t, device, gpu.Permute) })
	}
}

func TestPermuteReference(t *testing.T) { conformPermute(t, 0, gpu.PermuteReference) }

// conformPermute is the suite that everything which permutes passes.
func conformPermute(t *testing.T, device int, permute permuter) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	try := func(t *testing.T, s *shuffle) {
		t.Helper()
		verifyShuffle(t, device, permute, s)
	}
	t.Run("random", func(t *testing.T) {
		for i := range 200 {
			unit := 1 + r.Int64N(5000)
			if r.IntN(2) == 0 {
				unit = (unit + 15) / 16 * 16
			}
			s := newShuffle(r, unit, r.Int64N(3)*r.Int64N(64), 2+r.IntN(100), 1+r.IntN(100), r.IntN(17)*(1+15*r.IntN(2))%256)
			if !t.Run(fmt.Sprint(i), func(t *testing.T) { try(t, s) }) {
				t.Fatalf("seed %d: unit %d, grain %d, ends %v, closed %v", seed, s.perm.Unit, s.perm.Grain, s.perm.Ends, s.perm.Closed)
			}
		}
	})
	t.Run("every vector", func(t *testing.T) {
		for _, align := range []int{0, 1, 2, 4, 8, 16} {
			for _, unit := range []int64{1, 2, 4, 8, 16, 48, 1024} {
				try(t, newShuffle(r, unit, 0, 300, 300, align))
				try(t, newShuffle(r, unit, 16, 100, 3, align))
			}
		}
	})
	t.Run("one long cycle", func(t *testing.T) {
		s := newShuffle(r, 2048, 0, 500, 1, 0)
		s.perm.Pos, s.perm.Ends, s.perm.Closed = nil, nil, nil
		s.chain(r.Perm(500), 2048/s.perm.Grain, true)
		try(t, s)
	})
	t.Run("one long path", func(t *testing.T) {
		s := newShuffle(r, 2048, 0, 500, 1, 0)
		s.perm.Pos, s.perm.Ends, s.perm.Closed = nil, nil, nil
		s.chain(r.Perm(500), 2048/s.perm.Grain, false)
		try(t, s)
	})
	t.Run("tables of all sizes", func(t *testing.T) {
		for _, slots := range []int{900, 1100, 8000, 9000, 50_000} {
			for _, longest := range []int{2, 50, slots} {
				try(t, newShuffle(r, 16, 0, slots, longest, 0))
			}
		}
	})
	t.Run("units longer than the grid", func(t *testing.T) {
		try(t, newShuffle(r, 200_000, 0, 8, 3, 0))
		try(t, newShuffle(r, 70_001, 0, 8, 8, 3))
	})
	if !onFake {
		t.Run("large", func(t *testing.T) {
			try(t, newShuffle(r, 50176, 0, 780, 780, 0))
			try(t, newShuffle(r, 2048, 0, 50_000, 40_000, 0))
			try(t, newShuffle(r, 12545, 0, 1800, 1800, 1))
			try(t, newShuffle(r, 16, 0, 2_000_000, 1_000_000, 0))
			try(t, newShuffle(r, 10_000_000, 0, 12, 3, 0))
			try(t, newShuffle(r, 3_000_000, 16, 30, 30, 0))
		})
	}
	t.Run("nothing", func(t *testing.T) {
		s := newShuffle(r, 16, 0, 10, 1, 0)
		try(t, s)
		s.perm = flatten.Permutation{Unit: 16, Grain: 16}
		try(t, s)
	})
}

// smallShuffle is on a device, with a barrier and a table in device memory.
func smallShuffle(t testing.TB, device int) (b *bench, p *flatten.Permutation, verify func()) {
	t.Helper()
	b = onDevice(t, device)
	const slots, unit = 9000, 16
	contents := make([]byte, slots*unit)
	for i := range slots {
		binary.LittleEndian.PutUint64(contents[unit*i:], uint64(i))
	}
	at := b.alloc(contents)
	p = &flatten.Permutation{Unit: unit, Origin: uint64(at), Grain: unit, Ends: []int32{slots}, Closed: []bool{true}}
	for i := range slots {
		p.Pos = append(p.Pos, uint32(i))
	}
	turns := 0
	return b, p, func() {
		t.Helper()
		b.wait()
		turns++
		got := make([]byte, len(contents))
		b.read(got, at)
		for i := range slots {
			if v := binary.LittleEndian.Uint64(got[unit*i:]); v != uint64((i+turns)%slots) {
				t.Fatalf("unit %d after %d turns: got %d", i, turns, v)
			}
		}
	}
}

func TestPermuteRefuses(t *testing.T) {
	b, p, verify := smallShuffle(t, 0)
	for _, device := range []int{-1, 99} {
		if err := gpu.Permute(device, b.stream, p); !errors.Is(err, gpu.ErrNoDevice) {
			t.Errorf("device %d: got %v, want ErrNoDevice", device, err)
		}
	}
	b.must(cudatest.BeginCapture(b.stream))
	if err := gpu.Permute(0, b.stream, p); !errors.Is(err, gpu.ErrCapturing) {
		t.Errorf("got %v, want ErrCapturing", err)
	}
	graph, err := cudatest.EndCapture(b.stream)
	b.must(err)
	b.must(graph.Destroy())
	b.must(gpu.Permute(0, b.stream, p))
	verify()
}

// Another thread's capture must survive what a call does, also the first.
func TestPermuteBesideACapture(t *testing.T) {
	b, p, verify := smallShuffle(t, 0)
	gpu.Unload(0)
	other, err := cudatest.NewStream()
	b.must(err)
	defer func() { b.must(cudatest.DestroyStream(other)) }()
	b.must(cudatest.BeginCapture(other))
	b.must(gpu.Permute(0, b.stream, p))
	graph, err := cudatest.EndCapture(other)
	b.must(err)
	b.must(graph.Destroy())
	verify()
}

func TestPermuteFromManyThreads(t *testing.T) {
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				device := i % numDevices(t)
				b, p, verify := smallShuffle(t, device)
				for range 5 {
					if err := gpu.Permute(device, b.stream, p); err != nil {
						t.Error(err)
					}
					verify()
				}
			})
		})
	}
	group.Wait()
}

// Whatever driver call fails, nothing stays behind, the thread has the context it had,
// the error names the call, and the next one works.
func TestEveryCallOfPermuteMayFail(t *testing.T) {
	fakeOnly(t)
	for _, cold := range []bool{true, false} {
		t.Run(fmt.Sprintf("cold %v", cold), func(t *testing.T) {
			b, p, _ := smallShuffle(t, 1)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			leaveContexts(b)
			defer leaveContexts(b)
			prepare := func() {
				gpu.Unload(1)
				if !cold {
					b.must(gpu.Permute(1, b.stream, p))
				}
				fakecuda.Reset()
			}
			prepare()
			b.must(gpu.Permute(1, b.stream, p))
			calls := fakecuda.Log()
			gpu.Unload(1)
			clean := fakecuda.Alive()
			for nth, call := range calls {
				prepare()
				fakecuda.Fail(fakecuda.Any, nth+1, 2)
				err := gpu.Permute(1, b.stream, p)
				name := strings.Fields(call)[0]
				if tolerated := name == "cuCtxPopCurrent"; (err == nil) != tolerated {
					t.Errorf("call %d, %s: got %v", nth, call, err)
				}
				if err != nil && !strings.Contains(err.Error(), "["+name+"]") {
					t.Errorf("call %d, %s: the error is %v", nth, call, err)
				}
				if got := fakecuda.Current(); got != -1 {
					t.Errorf("call %d, %s: got the context of device %d, want none", nth, call, got)
				}
				b.must(gpu.Permute(1, b.stream, p))
				gpu.Unload(1)
				if alive := fakecuda.Alive(); alive != clean {
					t.Errorf("call %d, %s: got %+v alive, want %+v", nth, call, alive, clean)
				}
			}
		})
	}
	if n := fakecuda.DamagedGuards(); n > 0 {
		t.Errorf("%d guard bytes changed", n)
	}
}

func TestCooperative(t *testing.T) {
	if got, err := gpu.Cooperative(0); !got || err != nil {
		t.Errorf("got %v, %v, want true", got, err)
	}
	if _, err := gpu.Cooperative(99); !errors.Is(err, gpu.ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
}
