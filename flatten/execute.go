package flatten

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

// workerBytes is the least payload worth a goroutine of its own. Starting and
// joining one takes 3 to 20 microseconds, and 1 MiB from memory 80 and more, so
// a job of 2 MiB is the first that is shared. BenchmarkExecuteWorkers (2 cores, busy
// with other work): 256 KiB 6 us alone and 9 us shared, 2 MiB 160 and 185,
// 16 MiB 1400 and 1300, 64 MiB 8000 and 6500.
const workerBytes = 1 << 20

// sharesPerWorker is into how many shares a worker's part is cut, so that one
// that was late or slow leaves some to the others: nobody waits for more than
// 1/16 of a part that was begun on a core that another process then took.
const sharesPerWorker = 16

// spins is how often to look whether the others are done before sleeping: about
// 20 microseconds.
const spins = 20000

// Execute does what Apply does, faster: large jobs on up to workers goroutines,
// GOMAXPROCS of them where workers is 0 or less, and small ones on the caller's
// without allocating. dst and src are as for Apply; it returns when all bytes
// are in place.
//
// Execute panics where a slice is too short; a large job then has not written
// anything yet.
func (p *Plan) Execute(dst, src [][]byte, workers int) {
	total := p.payload()
	if workers = usefulWorkers(workers, total); workers == 1 {
		for i := range p.Segments {
			s := &p.Segments[i]
			s.move(dst[s.Batch], src[s.Entry], 0, s.Payload())
		}
		return
	}
	p.checkBounds(dst, src) // here, since nobody can recover from another goroutine's panic
	p.share(total, workers, func(s *Segment, first, end int64) {
		s.move(dst[s.Batch], src[s.Entry], first, end)
	})
}

// usefulWorkers is how many of the allowed workers a job of total bytes is worth.
func usefulWorkers(allowed int, total int64) int {
	if allowed <= 0 {
		allowed = runtime.GOMAXPROCS(0)
	}
	return int(max(1, min(int64(allowed), total/workerBytes)))
}

// share calls move for all bytes of the plan, total of them, on up to workers
// goroutines: the parts between neighbouring cuts, each by the worker that
// first has nothing else to do, the caller being one. It returns when all bytes
// are moved, even if a worker has not begun by then: on a busy machine a
// goroutine may wait for a core for longer than the whole job takes.
func (p *Plan) share(total int64, workers int, move func(s *Segment, first, end int64)) {
	cuts := p.cuts(total, workers*sharesPerWorker)
	w := &shares{left: make(chan struct{})}
	w.open.Store(int64(len(cuts) - 1))
	work := func() {
		for i := w.next.Add(1); i < int64(len(cuts)); i = w.next.Add(1) {
			p.between(cuts[i-1], cuts[i], move)
			w.close()
		}
	}
	for range workers - 1 {
		go work()
	}
	work()
	w.wait()
}

// shares counts the shares of a job.
type shares struct {
	next atomic.Int64  // the last one that a worker has taken
	open atomic.Int64  // those that are not done yet
	left chan struct{} // closed when there are none
}

// close notes that one more is done.
func (w *shares) close() {
	if w.open.Add(-1) == 0 {
		close(w.left)
	}
}

// wait returns when all shares are done. What others have begun takes them a few
// microseconds; going to sleep and being woken takes more.
func (w *shares) wait() {
	for range spins {
		if w.open.Load() == 0 {
			return
		}
	}
	<-w.left
}

// between calls move for everything between two cuts.
func (p *Plan) between(from, to cut, move func(s *Segment, first, end int64)) {
	for i := from.seg; i < len(p.Segments) && i <= to.seg; i++ {
		s := &p.Segments[i]
		first, end := int64(0), s.Payload()
		if i == from.seg {
			first = from.at
		}
		if i == to.seg {
			end = to.at
		}
		if first < end {
			move(s, first, end)
		}
	}
}

// payload is the number of bytes that the plan moves.
func (p *Plan) payload() int64 {
	var n int64
	for i := range p.Segments {
		n += p.Segments[i].Payload()
	}
	return n
}

// checkBounds panics where a segment reaches outside its slices.
func (p *Plan) checkBounds(dst, src [][]byte) {
	for i := range p.Segments {
		s := &p.Segments[i]
		from, srcEnd, to, dstEnd := s.reach()
		if from < 0 || srcEnd > int64(len(src[s.Entry])) || to < 0 || dstEnd > int64(len(dst[s.Batch])) {
			panic(fmt.Sprintf("goflat: %v: reads [%d, %d) of %d bytes, writes [%d, %d) of %d bytes",
				*s, from, srcEnd, len(src[s.Entry]), to, dstEnd, len(dst[s.Batch])))
		}
	}
}

// reach is the range of bytes that the segment reads and the one it writes.
func (s *Segment) reach() (from, srcEnd, to, dstEnd int64) {
	from, srcEnd, to, dstEnd = s.Src, s.Src+s.Bytes, s.Dst, s.Dst+s.Bytes
	for _, a := range s.Axes {
		from += min(a.SrcStep*(a.N-1), 0)
		srcEnd += max(a.SrcStep*(a.N-1), 0)
		to += min(a.DstStep*(a.N-1), 0)
		dstEnd += max(a.DstStep*(a.N-1), 0)
	}
	return from, srcEnd, to, dstEnd
}
