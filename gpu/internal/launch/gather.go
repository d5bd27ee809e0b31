package launch

import "github.com/goflat/goflat/flatten"

// A Launch is one kernel launch: a grid of Blocks blocks of Kernel.Threads() threads
// in one dimension, with Table as the only parameter.
type Launch struct {
	Kernel Kernel
	Blocks uint32
	Table  []uint32 // Kernel.Words() words, valid until the function it was given to returns
}

// Gather writes launches. It is large (160 KB) and meant to be used again; it must
// not be used by two goroutines at once.
type Gather struct {
	tables [numClasses]table
	route  route
	sms    int
	launch func(*Launch) error
	out    Launch
	err    error // the first of launch, after which nothing more is launched
}

// Job is what to move.
type Job struct {
	Plan *flatten.Plan
	// Device is which of the plan's batches to move; the others' addresses are not
	// looked at. A layout without devices is all on it.
	Device flatten.Device
	// Dst has one address a batch, Src one an entry: those that the plan's offsets
	// count from.
	Dst, Src []uintptr
	// Multiprocessors of the device, at least 1.
	Multiprocessors int
}

// addresses returns where a segment goes to and comes from.
func (j *Job) addresses(s *flatten.Segment) (dst, src uint64) {
	return uint64(j.Dst[s.Batch]) + uint64(s.Dst), uint64(j.Src[s.Entry]) + uint64(s.Src)
}

// Run calls launch for every launch of a job and returns its first error, after
// which it calls it no more.
func (g *Gather) Run(job *Job, launch func(*Launch) error) error {
	c := count(job)
	g.begin(choose(&c, job.Multiprocessors), job.Multiprocessors, launch)
	g.add(job)
	return g.end()
}

// RunMoves is Run for moves between addresses, on a device of so many multiprocessors.
func (g *Gather) RunMoves(moves []flatten.Move, multiprocessors int, launch func(*Launch) error) error {
	c := countMoves(moves)
	g.begin(choose(&c, multiprocessors), multiprocessors, launch)
	for i := range moves {
		m := &moves[i]
		g.addRuns(g.route.table[classOf(m.Dst.Off, m.Src.Off, m.Bytes, m.Axes)], m.Dst.Off, m.Src.Off, m.Bytes, m.Axes)
	}
	return g.end()
}

func (g *Gather) begin(r route, multiprocessors int, launch func(*Launch) error) {
	g.route = r
	g.sms, g.launch, g.err = multiprocessors, launch, nil
	for i := range g.tables {
		g.tables[i].narrow = r.narrow[i]
		g.tables[i].reset(r.kernel[i])
	}
}

func (g *Gather) end() error {
	for i := range g.tables {
		g.flush(i)
	}
	g.launch = nil
	return g.err
}

// count counts a job's segments, and the batches they come from. What it adds up of plain
// segments it keeps in registers.
func count(job *Job) (c census) {
	devices := job.Plan.Layout.Devices
	batch := -1
	var all, few tally // plain segments, and the short ones of them
	var lengths, offsets, farthest int64
	for i := range job.Plan.Segments {
		s := &job.Plan.Segments[i]
		if s.Batch != batch {
			if devices != nil && devices[s.Batch] != job.Device {
				continue
			}
			batch = s.Batch
			c.batches++
		}
		if len(s.Axes) > 0 {
			dst, src := job.addresses(s)
			c.classes[classOf(dst, src, s.Bytes, s.Axes)].count(s.Bytes, s.Axes)
			continue
		}
		all.segments++
		all.bytes += s.Bytes
		if s.Bytes < shortBytes {
			few.segments++
			few.bytes += s.Bytes
		}
		lengths |= s.Bytes
		offsets |= s.Src
		farthest = max(farthest, s.Src)
	}
	c.classes[short] = few
	c.classes[long] = tally{segments: all.segments - few.segments, bytes: all.bytes - few.bytes}
	c.plain.lengths, c.plain.offsets, c.plain.farthest = uint64(lengths), uint64(offsets), uint64(farthest)
	c.plain.entries(job.Src, devices, job.Device)
	return c
}

// countMoves is count for moves. Their batches are the stretches of destinations that
// follow one another.
func countMoves(moves []flatten.Move) (c census) {
	var end uint64
	for i := range moves {
		m := &moves[i]
		if m.Dst.Off != end || len(m.Axes) > 0 {
			c.batches++
		}
		end = m.Dst.Off + uint64(m.Bytes)
		c.classes[classOf(m.Dst.Off, m.Src.Off, m.Bytes, m.Axes)].count(m.Bytes, m.Axes)
		if len(m.Axes) == 0 {
			c.plain.segment(m.Src.Off, 0, uint64(m.Bytes))
		}
	}
	return c
}

// add writes a job's segments into the tables.
func (g *Gather) add(job *Job) {
	segments, devices := job.Plan.Segments, job.Plan.Layout.Devices
	for len(segments) > 0 {
		s := &segments[0]
		segments = segments[1:]
		if devices != nil && devices[s.Batch] != job.Device {
			continue
		}
		dst, src := job.addresses(s)
		into := g.route.table[classOf(dst, src, s.Bytes, s.Axes)]
		if len(s.Axes) > 0 {
			g.addRuns(into, dst, src, s.Bytes, s.Axes)
			continue
		}
		g.addPlain(into, dst, src, s.Bytes)
		n := g.addNeighbours(into, segments, s.Batch, job)
		segments = segments[n:]
	}
}

// addNeighbours adds the first of segments for as long as they are plain, belong into
// the same table, and follow in the same output what was added last, and returns how
// many these were. It is addPlain for the ordinary case, several times as fast.
func (g *Gather) addNeighbours(into int, segments []flatten.Segment, batch int, job *Job) int {
	t := &g.tables[into]
	least, lengths := g.route.lengths(into)
	w, at := t.writer()
	number, end := int64(t.numbers), t.srcEnd
	sources, dst := job.Src, int64(t.base-uint64(job.Dst[batch])) // so that what follows has the offset dst + number
	n := 0
	for ; n < len(segments); n++ {
		s := &segments[n]
		src := uint64(sources[s.Entry]) + uint64(s.Src)
		if s.Batch != batch || s.Dst != dst+number || uint64(s.Bytes-least) >= lengths || len(s.Axes) > 0 ||
			!w.fits(at, src, number+s.Bytes) {
			break
		}
		if src != end {
			w.put(at, src, uint32(number))
			at += w.size
		}
		number += s.Bytes
		end = src + uint64(s.Bytes)
	}
	t.written(&w, at, number, end)
	return n
}

// addPlain adds contiguous bytes, over as many launches as they need.
func (g *Gather) addPlain(into int, dst, src uint64, n int64) {
	t := &g.tables[into]
	for n > 0 {
		piece := min(n, int64(t.most))
		if !t.fits(src, uint64(piece), placeWords) {
			g.flush(into)
		}
		t.addPlain(dst, src, uint32(piece))
		dst, src, n = dst+uint64(piece), src+uint64(piece), n-piece
	}
}

// addRuns adds a strided segment. One that is too large for a launch is cut along its
// outermost axis, as often as it takes; what is left without axes is plain.
func (g *Gather) addRuns(into int, dst, src uint64, n int64, axes []flatten.Axis) {
	if len(axes) == 0 {
		g.addPlain(g.route.table[classOf(dst, src, n, nil)], dst, src, n)
		return
	}
	inner := n
	for _, axis := range axes[1:] {
		inner *= axis.N
	}
	outer := axes[0]
	for turn := int64(0); turn < outer.N; {
		turns := min(outer.N-turn, maxNumbers/inner)
		switch {
		case turns <= 1:
			turns = 1
			g.addRuns(into, dst, src, n, axes[1:])
		default:
			r := runs{dst: dst, src: src, bytes: uint32(n), payload: uint64(inner * turns)}
			r.axes = append(r.room[:0], axes...)
			r.axes[0].N = turns
			g.addWhole(into, &r)
		}
		dst += uint64(outer.DstStep * turns)
		src += uint64(outer.SrcStep * turns)
		turn += turns
	}
}

// addWhole adds a strided segment that one launch can take.
func (g *Gather) addWhole(into int, r *runs) {
	t := &g.tables[into]
	if !t.fits(r.src, r.numbers(t.form()), axesWord+axisWords*len(r.axes)) {
		g.flush(into)
	}
	t.addStrided(r)
}

// flush launches what is in a table and empties it.
func (g *Gather) flush(i int) {
	t := &g.tables[i]
	if t.records == 0 {
		return
	}
	if g.err == nil {
		kernel := g.route.kernel[i]
		tile := kernel.tile(t.numbers, t.bytes, g.sms)
		t.close(tile)
		g.out = Launch{Kernel: kernel, Blocks: kernel.blocks((t.numbers + tile - 1) / tile), Table: t.words[:t.capacity]}
		g.err = g.launch(&g.out)
	}
	t.reset(g.route.kernel[i])
}
