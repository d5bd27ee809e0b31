package flatten

import (
	"sync"
	"sync/atomic"
)

// A Space is the memory that a plan runs on. At returns the n bytes from an
// address on; it panics where they are not all memory of the job.
type Space interface {
	At(a Addr, n int64) []byte
}

// Run does step i of the plan on up to workers goroutines, GOMAXPROCS of them
// where workers is 0 or less, and returns when all its bytes are in place. It is
// the meaning of Gather and Permute, and what the CPU runs. For the other kinds,
// which take and give memory, it does nothing: they are for the caller, in order.
//
// Run panics where At does. Beside the memory of the job it needs stripBytes for
// each worker.
func (p *InPlace) Run(i int, s Space, workers int) {
	switch step := &p.Steps[i]; step.Kind {
	case Gather:
		runMoves(step.Moves, s, workers)
	case Permute:
		step.Perm.run(s, workers)
	}
}

// runMoves moves all of moves as a plan, whose entry i is what move i reads.
func runMoves(moves []Move, s Space, workers int) {
	var p Plan
	p.Segments = make([]Segment, len(moves))
	dst, src := make([][]byte, len(moves)), make([][]byte, len(moves))
	for i := range moves {
		seg := moves[i].segment()
		from, srcEnd, to, dstEnd := seg.reach()
		src[i] = s.At(Addr{moves[i].Src.Base, uint64(from)}, srcEnd-from)
		dst[i] = s.At(Addr{moves[i].Dst.Base, uint64(to)}, dstEnd-to)
		seg.Entry, seg.Batch = i, i
		seg.Src -= from
		seg.Dst -= to
		p.Segments[i] = seg
	}
	p.Execute(dst, src, workers)
}

// stripBytes is how many bytes of a unit a worker of Permute carries at a time:
// its buffer stays in the first-level cache.
const stripBytes = 8 << 10

// run moves the units strip by strip, a strip being the same bytes of each of
// them. Strips share nothing, so workers take them in turns; where the units are
// too small for a strip each, there are fewer strips than workers.
func (p *Permutation) run(s Space, workers int) {
	workers = usefulWorkers(workers, p.Units()*p.Unit)
	width := p.stripWidth(workers)
	strips := (p.Unit + width - 1) / width
	var next atomic.Int64
	work := func() {
		buffer := make([]byte, width)
		for i := next.Add(1) - 1; i < strips; i = next.Add(1) - 1 {
			p.runStrip(s, i*width, min(width, p.Unit-i*width), buffer)
		}
	}
	var others sync.WaitGroup
	for range min(int64(workers), strips) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// stripWidth cuts a unit into a strip for each worker, of whole cache lines and
// of stripBytes at most.
func (p *Permutation) stripWidth(workers int) int64 {
	width := roundUp((p.Unit+int64(workers)-1)/int64(workers), cutAlign)
	return min(width, stripBytes)
}

// runStrip moves the bytes [first, first+n) of every unit.
func (p *Permutation) runStrip(s Space, first, n int64, buffer []byte) {
	at := func(v uint32) []byte {
		return s.At(Addr{Absolute, p.address(v) + uint64(first)}, n)
	}
	for i := range p.Ends {
		chain := p.chain(i)
		head := at(chain[0])
		if p.Closed[i] {
			copy(buffer, head)
		}
		for _, v := range chain[1:] {
			source := at(v)
			copy(head, source)
			head = source
		}
		if p.Closed[i] {
			copy(head, buffer[:n])
		}
	}
}
