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
	size   int64 // bytes of a share, about
	room   int64 // bytes until this one is full
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
	j.deal(shareSize(total, size))
	j.team.copy(size)
}

// deal lists the plan's segments as pieces in shares of about size bytes.
func (j *job) deal(size int64) {
	j.addresses()
	t := &j.team
	t.begin(size)
	for i := range j.plan.Segments {
		s := &j.plan.Segments[i]
		t.add(uint64(j.dstAddr[s.Batch])+uint64(s.Dst), uint64(j.srcAddr[s.Entry])+uint64(s.Src), s.Bytes)
	}
	t.end()
}

// shareSize is about how many bytes a thread takes at a time, of total ones on so many threads.
func shareSize(total int64, threads int) int64 {
	return min(max(total/int64(threads*sharesAThread), shareBytes), shareMost)
}

// begin empties the list, for shares of about size bytes.
func (t *team) begin(size int64) {
	t.pieces, t.ends = t.pieces[:0], t.ends[:0]
	t.size, t.room = size, size
}

// add lists bytes as pieces. They are cut where a cache line of the output ends, so that no two threads write one.
func (t *team) add(dst, src uint64, bytes int64) {
	for bytes > 0 {
		n := bytes
		if n > t.room {
			n = min(n, t.room+int64(-(dst+uint64(t.room))%cacheLine))
		}
		t.pieces = append(t.pieces, C.gf_piece{C.uint64_t(dst), C.uint64_t(src), C.int64_t(n)})
		dst, src, bytes = dst+uint64(n), src+uint64(n), bytes-n
		if t.room -= n; t.room <= 0 {
			t.end()
			t.room = t.size
		}
	}
}

// end closes the last share.
func (t *team) end() {
	if n := len(t.pieces); n > 0 && (len(t.ends) == 0 || int(t.ends[len(t.ends)-1]) < n) {
		t.ends = append(t.ends, C.int64_t(n))
	}
}

// copy moves the pieces with so many of torch's threads.
func (t *team) copy(threads int) {
	if n := len(t.ends); n != 0 {
		C.gf_team_copy(&t.pieces[0], &t.ends[0], C.int64_t(n), C.int(threads))
	}
}

// wantHugePages asks for large pages below a new output: a fault of a small page costs as much as copying it twice.
func wantHugePages(addr uint64, bytes int64) {
	if bytes >= hugeBytes {
		C.gf_want_huge_pages(C.uint64_t(addr), C.int64_t(bytes))
	}
}
