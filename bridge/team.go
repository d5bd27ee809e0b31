package bridge

// #include "job.h"
// #include "team.h"
import "C"

import "math"

// How a copy on the CPU is shared, with what was measured in docs/adr/0015-threads-of-a-copy-on-the-cpu.md.
const (
	teamBytes     = 256 << 10 // the least that is worth a team that is awake
	aloneBytes    = 2 << 20   // the least that is worth waking threads
	shareBytes    = 128 << 10 // the least that a thread takes at a time
	shareMost     = 1 << 20   // the most: what a late thread leaves to the others
	sharesAThread = 8
	hugeBytes     = 4 << 20 // outputs from here on ask for large pages, as NumPy's do
	cacheLine     = 64
)

// team is what torch's threads are told: pieces in the order of the plan, and where each share ends.
type team struct {
	pieces []C.gf_piece
	ends   []C.int64_t
}

// workers is how many threads torch would use for so many bytes; 0: as many as Go has.
func (j *job) workers(total int64) int {
	if j.c.kind == C.GF_KIND_TORCH && total >= teamBytes {
		return int(C.gf_team_size())
	}
	return 0
}

// move moves the bytes of the plan, total of them, on the threads that suit it.
func (j *job) move(total int64) {
	workers := j.workers(total)
	switch {
	case j.isStrided():
		j.execute(workers)
	case workers > 1 && C.gf_team_awake() != 0:
		j.copyByTeam(total, workers)
	case total < aloneBytes || workers == 1:
		j.copyAlone()
	default:
		j.execute(workers)
	}
}

func (j *job) isStrided() bool {
	for i := range j.plan.Segments {
		if j.plan.Segments[i].Axes != nil {
			return true
		}
	}
	return false
}

// execute moves the bytes on Go's threads.
func (j *job) execute(workers int) {
	j.slices()
	j.plan.Execute(j.dst, j.src, workers)
}

// copyAlone moves the bytes on this thread.
func (j *job) copyAlone() {
	j.deal(math.MaxInt64)
	if n := len(j.team.pieces); n != 0 {
		C.gf_copy_pieces(&j.team.pieces[0], C.int64_t(n))
	}
}

// copyByTeam moves the bytes with size of torch's threads.
func (j *job) copyByTeam(total int64, size int) {
	j.deal(min(max(total/int64(size*sharesAThread), shareBytes), shareMost))
	C.gf_team_copy(&j.team.pieces[0], &j.team.ends[0], C.int64_t(len(j.team.ends)), C.int(size))
}

// deal lists the plan's segments as pieces in shares of about size bytes. Segments are cut where a cache line of the
// output ends, so that no two threads write one.
func (j *job) deal(size int64) {
	j.addresses()
	t := &j.team
	t.pieces, t.ends = t.pieces[:0], t.ends[:0]
	room := size
	for i := range j.plan.Segments {
		s := &j.plan.Segments[i]
		dst, src := uint64(j.dstAddr[s.Batch])+uint64(s.Dst), uint64(j.srcAddr[s.Entry])+uint64(s.Src)
		for left := s.Bytes; left > 0; {
			n := left
			if n > room {
				n = min(n, room+int64(-(dst+uint64(room))%cacheLine))
			}
			t.pieces = append(t.pieces, C.gf_piece{C.uint64_t(dst), C.uint64_t(src), C.int64_t(n)})
			dst, src, left = dst+uint64(n), src+uint64(n), left-n
			if room -= n; room <= 0 {
				t.ends = append(t.ends, C.int64_t(len(t.pieces)))
				room = size
			}
		}
	}
	if room < size {
		t.ends = append(t.ends, C.int64_t(len(t.pieces)))
	}
}

// wantHugePages asks for large pages below a new output: a fault of a small page costs as much as copying it twice.
func wantHugePages(addr uint64, bytes int64) {
	if bytes >= hugeBytes {
		C.gf_want_huge_pages(C.uint64_t(addr), C.int64_t(bytes))
	}
}
