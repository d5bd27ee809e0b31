package flatten

// growth walks the steps and returns how far the level of requested bytes rises
// above where it was.
func (p *InPlace) growth() int64 {
	var level, most int64
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Kind {
		case Alloc:
			level += p.Layout.BatchBytes(s.Batch)
		case AllocScratch:
			level += p.Scratch
		case FreeScratch:
			level -= p.Scratch
		case Free:
			for _, b := range s.Blocks {
				level -= p.Blocks[b].Bytes
			}
		}
		most = max(most, level)
	}
	return most
}

// reservedGrowth is the bound on reserved memory for all that the steps allocate.
func (p *InPlace) reservedGrowth() int64 {
	var sizes []int64
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Kind {
		case Alloc:
			sizes = append(sizes, p.Layout.BatchBytes(s.Batch))
		case AllocScratch:
			sizes = append(sizes, p.Scratch)
		}
	}
	return ReservedBound(sizes)
}

// How torch's CUDA allocator reserves memory, in bytes (c10/cuda/CUDACachingAllocator.h,
// the same since 2.0): sizes are rounded up to roundTo; up to smallMost come from
// segments of smallSegment, below mediumMost from mediumSegment, and above that
// each has a segment of its own, rounded up to 2 MiB. Expandable segments grow by
// largeTo at a time instead, which a bound has to allow for.
const (
	roundTo       = 512
	smallMost     = 1 << 20
	smallSegment  = 2 << 20
	mediumMost    = 10 << 20
	mediumSegment = 20 << 20
	largeTo       = 20 << 20
)

// ReservedBound is how many bytes torch's CUDA allocator reserves for allocations
// of these sizes at most, all alive at once, where its cache holds nothing that
// fits. A segment is opened only when no other has room, so that all but one are
// more than half full, whatever the order.
func ReservedBound(sizes []int64) int64 {
	var small, medium segments
	var large int64
	for _, n := range sizes {
		n = roundUp(n, roundTo)
		switch {
		case n <= smallMost:
			small.add(n)
		case n < mediumMost:
			medium.add(n)
		default:
			large += roundUp(n, largeTo)
		}
	}
	return small.bound(smallSegment) + medium.bound(mediumSegment) + large
}

// segments counts what shares the segments of one size.
type segments struct{ count, bytes int64 }

func (s *segments) add(n int64) {
	if n > 0 {
		s.count++
		s.bytes += n
	}
}

// bound is the bytes of the most segments that are more than half full, and one.
func (s *segments) bound(segment int64) int64 {
	if s.count == 0 {
		return 0
	}
	return segment * min(s.count, 2*s.bytes/segment+1)
}

// roundUp is the least multiple of unit that is n or more. n+unit must fit.
func roundUp(n, unit int64) int64 {
	return (n + unit - 1) / unit * unit
}

// A Prediction is what a job costs.
type Prediction struct {
	Growth         int64 // as in InPlace
	Tables         int64
	ReservedGrowth int64
}

// Bounds is what consuming the entries of a layout costs at best and at worst,
// when nothing is known about where they lie: at best they lie in one range that
// holds all outputs and moves freely, at worst somebody else holds them all, so
// that every output is allocated and nothing given back.
//
// It returns the error of Plan.BuildPlain for a layout that no plan fits.
func Bounds(l *Layout) (best, worst Prediction, err error) {
	if err := l.checkRows(); err != nil {
		return best, worst, err
	}
	sizes := make([]int64, l.Batches)
	for b := range sizes {
		sizes[b] = l.BatchBytes(b)
	}
	worst = Prediction{Growth: l.Bytes(), Tables: defaultTableLimit(l.Bytes()), ReservedGrowth: ReservedBound(sizes)}
	return best, worst, nil
}

// defaultTableLimit is the table bytes that a job of the given bytes may take.
func defaultTableLimit(bytes int64) int64 {
	return max(64<<10, bytes/100)
}
