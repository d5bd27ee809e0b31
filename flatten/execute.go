package flatten

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// serialBytes is the payload up to which Execute stays on the caller's
// goroutine: BenchmarkExecuteWorkers had one goroutine ahead below it.
const serialBytes = 2 << 20

// sharesPerWorker is into how many shares a worker's part is cut, so that one
// that was late or slow leaves some to the others.
const sharesPerWorker = 4

// Execute does what Apply does, faster: large jobs on up to workers goroutines,
// GOMAXPROCS of them where workers is 0 or less, and small ones on the caller's
// without allocating. dst and src are as for Apply; it returns when all bytes
// are in place.
//
// Execute panics where a slice is too short; a large job then has not written
// anything yet.
func (p *Plan) Execute(dst, src [][]byte, workers int) {
	total := p.payload()
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if total <= serialBytes || workers == 1 {
		p.run(dst, src, cut{}, cut{seg: len(p.Segments)})
		return
	}
	p.checkBounds(dst, src) // here, since nobody can recover from another goroutine's panic
	p.runShares(dst, src, workers, p.cuts(total, workers*sharesPerWorker))
}

// runShares runs the parts between neighbouring cuts, each worker taking the
// next one that nobody has.
func (p *Plan) runShares(dst, src [][]byte, workers int, cuts []cut) {
	var next atomic.Int64
	work := func() {
		for i := next.Add(1); i < int64(len(cuts)); i = next.Add(1) {
			p.run(dst, src, cuts[i-1], cuts[i])
		}
	}
	var others sync.WaitGroup
	for range min(workers, len(cuts)-1) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// run moves everything between two cuts.
func (p *Plan) run(dst, src [][]byte, from, to cut) {
	for i := from.seg; i < len(p.Segments) && i <= to.seg; i++ {
		s := &p.Segments[i]
		first, end := int64(0), s.Payload()
		if i == from.seg {
			first = from.at
		}
		if i == to.seg {
			end = to.at
		}
		s.move(dst[s.Batch], src[s.Entry], first, end)
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
			panic(fmt.Sprintf("goflat: %+v reads [%d, %d) of %d bytes, writes [%d, %d) of %d bytes",
				*s, from, srcEnd, len(src[s.Entry]), to, dstEnd, len(dst[s.Batch])))
		}
	}
}
