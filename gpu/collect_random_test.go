package gpu_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/cudatest"
)

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

type model struct {
	*collector
	random   *rand.Rand
	open     int64
	segments []gpu.Span
	claims   []gpu.Span
}

func overlap(a, b gpu.Span) bool { return a.Lo < b.Hi && b.Lo < a.Hi }

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

func TestCollectStress(t *testing.T) {
	fakeOnly(t)
	program := filepath.Join(t.TempDir(), "stress")
	sources := []string{"testdata/collect_stress.c", "collect.c", "collect_map.c", "collect_range.c", "collect_supply.c", "collect_tell.c", "launch.c"}
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
