package flatten

import "slices"

// MaxAxes is the most axes that one segment has.
const MaxAxes = 4

// Axis repeats a copy N times, moving by a step on either side each time.
type Axis struct {
	N       int64 // at least 2
	SrcStep int64 // bytes, also 0 (expanded) or negative (reversed)
	DstStep int64 // bytes, at least 1
}

// Segment is one move of contiguous bytes, repeated along its axes:
//
//	for i0 in Axes[0].N, i1 in Axes[1].N, ...:
//		dst[Batch][Dst + i0*Axes[0].DstStep + ...][:Bytes] = src[Entry][Src + i0*Axes[0].SrcStep + ...][:Bytes]
//
// An entry that is contiguous and lands in a contiguous output is one segment
// without axes.
type Segment struct {
	Entry int    // index k*Batches+b of the entry it reads
	Batch int    // output it writes
	Src   int64  // bytes from the lowest address the entry touches (View.Span)
	Dst   int64  // bytes from the lowest address the output touches
	Bytes int64  // contiguous bytes, at least one element
	Axes  []Axis // outermost first, at most MaxAxes; owned by the plan
}

// Payload is the number of bytes the segment moves, all repeats together.
func (s *Segment) Payload() int64 {
	n := s.Bytes
	for i := range s.Axes {
		n *= s.Axes[i].N
	}
	return n
}

// Plan says which bytes of which entry go where in which output.
//
// Segments are sorted by batch, then by key; entries without elements have
// none. The zero Plan is ready for Build and BuildPlain, which reuse the memory
// of the plan before and so end the life of its segments. A built plan is read
// only: any number of goroutines may run it at once.
type Plan struct {
	Layout   *Layout // the layout it was built for, owned by the caller
	Segments []Segment

	axes []Axis // behind the Axes of all segments
	nest nest   // scratch
}

// NewPlan plans the move of entries into outs; see Plan.Build.
func NewPlan(l *Layout, entries []Entry, outs []View) (*Plan, error) {
	p := new(Plan)
	if err := p.Build(l, entries, outs); err != nil {
		return nil, err
	}
	return p, nil
}

// BuildPlain plans for contiguous entries and contiguous outputs, for which
// the layout is all there is to know. It allocates only where the job has more
// entries than any before. The plan refers to l until the next build.
//
// It returns a *ShapeError for a literal layout whose counts are negative, too
// many, too few, or add up to 2^63 bytes; the plan is then empty.
func (p *Plan) BuildPlain(l *Layout) error {
	p.reset(l)
	if err := l.checkRows(); err != nil {
		return err
	}
	p.plain()
	p.checkInvariants(nil, nil)
	return nil
}

// BuildPlainInto is BuildPlain for outputs that the caller has: contiguous ones,
// one per batch, whose strides are not looked at. It returns the errors of
// BuildPlain, and a *ShapeError with Key -1 for an output of the wrong shape.
func (p *Plan) BuildPlainInto(l *Layout, outs []View) error {
	p.reset(l)
	if err := l.checkRows(); err != nil {
		return err
	}
	if err := p.checkOuts(outs); err != nil {
		return err
	}
	p.plain()
	p.checkInvariants(nil, nil)
	return nil
}

// Build plans for entries and outputs that lie in memory as their strides say.
// outs has one view per batch, nil stands for contiguous outputs. Neither is
// kept. It allocates only where the job is larger than any before.
//
// It returns a *ShapeError, *DTypeError or *DeviceError where an entry is not
// what l says, a *ShapeError with Key -1 for an output of the wrong shape, and
// an *OverlapError with Key -1 for one whose own elements share bytes; the plan
// is then empty. Whether outputs and entries overlap is for CheckOverlap.
func (p *Plan) Build(l *Layout, entries []Entry, outs []View) error {
	p.reset(l)
	if err := l.check(entries); err != nil {
		return err
	}
	if err := p.checkOuts(outs); err != nil {
		return err
	}
	if outs == nil && allContiguous(entries) {
		p.plain()
	} else {
		p.strided(entries, outs)
	}
	p.checkInvariants(entries, outs)
	return nil
}

// reset empties the plan and makes room for one segment per entry.
func (p *Plan) reset(l *Layout) {
	p.Layout = l
	p.Segments = slices.Grow(p.Segments[:0], len(l.Rows))
	p.axes = p.axes[:0]
}

// allContiguous reports whether no entry has strides.
func allContiguous(entries []Entry) bool {
	for e := range entries {
		if entries[e].Strides != nil {
			return false
		}
	}
	return true
}
