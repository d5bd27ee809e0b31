package launch

import "github.com/goflat/goflat/flatten"

// A CastKernel is one of the entry points of gpu/kernels/cast.cu.
type CastKernel struct {
	From, To flatten.Float
	Large    bool // has a table of 32 KB, not of 4
}

// CastThreads is the number of threads of a block.
const CastThreads = 256

// String is the kernel's name in its module.
func (k CastKernel) String() string {
	name := "cast_" + k.From.Short() + "_" + k.To.Short()
	if k.Large {
		return name + "_32k"
	}
	return name + "_4k"
}

// Words is the length of the kernel's table.
func (k CastKernel) Words() int {
	if k.Large {
		return LargeWords
	}
	return SmallWords
}

// A CastLaunch is a launch of Blocks blocks of CastThreads threads.
type CastLaunch struct {
	Kernel CastKernel
	Blocks uint32
	Table  []uint32 // Kernel.Words() words, valid until the function it was given to returns
}

// Cast writes launches that convert. It is meant to be used again; it must not be used by two
// goroutines at once.
type Cast struct {
	table  castTable
	kernel CastKernel
	rules  flatten.Rules
	sms    int
	launch func(*CastLaunch) error
	out    CastLaunch
	err    error // the first of launch, after which nothing more is launched
}

// CastJob is what to convert: the fields of Job, for a plan in elements. Addresses are multiples of
// the elements that lie there.
type CastJob struct {
	*flatten.Cast
	Device          flatten.Device
	Dst, Src        []uintptr
	Multiprocessors int
}

// Run calls launch for every launch of a job and returns its first error, after which it calls it
// no more. An ordinary job is one launch for each type of its entries: kernels that take several
// types take longer for each (docs/adr/0016-casts-while-copying.md).
func (c *Cast) Run(job *CastJob, launch func(*CastLaunch) error) error {
	c.rules, c.sms, c.launch, c.err = job.Rules, job.Multiprocessors, launch, nil
	words := castWords(job)
	for from, n := range words {
		if n > 0 {
			c.kernel = CastKernel{flatten.Float(from), job.To, n > SmallWords}
			c.runType(job)
		}
	}
	c.launch = nil
	return c.err
}

// runType launches what the kernel's type is converted by.
func (c *Cast) runType(job *CastJob) {
	c.table.reset(c.kernel)
	devices, from := job.Plan.Layout.Devices, c.kernel.From
	for i := range job.Plan.Segments {
		s := &job.Plan.Segments[i]
		if job.From[s.Entry] != from || devices != nil && devices[s.Batch] != job.Device {
			continue
		}
		dst := uint64(job.Dst[s.Batch]) + uint64(s.Dst*job.To.Bytes())
		src := uint64(job.Src[s.Entry]) + uint64(s.Src*from.Bytes())
		c.add(castRuns{dst: dst, src: src, elements: s.Bytes, axes: s.Axes})
	}
	c.flush()
}

// castWords is how long tables of all of a job's segments of each type are at most; 0 for types
// without.
func castWords(job *CastJob) (words [flatten.NumFloats]int) {
	devices, last := job.Plan.Layout.Devices, -1
	for i := range job.Plan.Segments {
		s := &job.Plan.Segments[i]
		if devices != nil && devices[s.Batch] != job.Device {
			continue
		}
		n := &words[job.From[s.Entry]]
		if *n == 0 {
			*n = recordsWord
		}
		*n += recordWords
		switch {
		case len(s.Axes) > 0:
			*n += axesWord + axisWords*len(s.Axes)
			last = -1
			continue
		case last < 0 || job.Plan.Segments[last].Batch != s.Batch || job.From[job.Plan.Segments[last].Entry] != job.From[s.Entry]:
			*n += placeWords
		}
		last = i
	}
	return words
}

// maxCastElements is how many elements one launch converts at most: less than 2^31 bytes of
// either side, and a multiple of the 16 elements that kernels cut at.
const maxCastElements = 1<<28 - 1<<16

// A castRuns is a segment with addresses: elements side by side, repeated along axes whose steps
// are in elements.
type castRuns struct {
	dst, src uint64
	elements int64
	axes     []flatten.Axis
}

// add adds a segment, over as many launches as it needs: a strided one is cut along its outermost
// axis.
func (c *Cast) add(r castRuns) {
	if len(r.axes) == 0 {
		c.addPlain(r)
		return
	}
	inner := r.elements
	for _, axis := range r.axes[1:] {
		inner *= axis.N
	}
	outer := r.axes[0]
	for turn := int64(0); turn < outer.N; {
		turns := min(outer.N-turn, maxCastElements/inner)
		if turns <= 1 {
			turns = 1
			c.add(castRuns{r.dst, r.src, r.elements, r.axes[1:]})
		} else {
			c.addStrided(r, turns, inner*turns)
		}
		r.dst += uint64(outer.DstStep * turns * c.table.to)
		r.src += uint64(outer.SrcStep * turns * c.table.from)
		turn += turns
	}
}

func (c *Cast) addPlain(r castRuns) {
	for r.elements > 0 {
		piece := min(r.elements, maxCastElements)
		if !c.table.fits(r.src, piece, placeWords) {
			c.flush()
		}
		c.table.addPlain(r.dst, r.src, uint32(piece))
		r.dst += uint64(piece * c.table.to)
		r.src += uint64(piece * c.table.from)
		r.elements -= piece
	}
}

// addStrided adds the first turns of a strided segment that one launch can take.
func (c *Cast) addStrided(r castRuns, turns, payload int64) {
	if !c.table.fits(r.src, payload, axesWord+axisWords*len(r.axes)) {
		c.flush()
	}
	c.table.addStrided(r, turns, uint32(payload))
}

// flush launches what is in the table and empties it.
func (c *Cast) flush() {
	t := &c.table
	if t.records == 0 {
		return
	}
	if c.err == nil {
		tile := t.tile(c.sms)
		t.close(tile, c.rules)
		tiles := (t.elements + tile - 1) / tile
		c.out = CastLaunch{Kernel: c.kernel, Blocks: (tiles + CastThreads/32 - 1) / (CastThreads / 32), Table: t.words[:t.capacity]}
		c.err = c.launch(&c.out)
	}
	t.empty()
}
