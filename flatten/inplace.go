package flatten

// A Block is memory that comes with the entries: one storage whose only users
// are entries of the job, or free room of a collected range. Blocks do not overlap.
type Block struct {
	Lo, Hi uint64 // addresses [Lo, Hi); Hi includes what the allocator rounded up and nobody else has
	Range  int    // id of the allocation or mapped range it lies in; a run never crosses two ranges
	Bytes  int64  // requested bytes that dropping it gives back; 0 for free room
	Fixed  bool   // may be given back, not written: strided entries, foreign memory
}

// A Place is where an entry lies.
type Place struct {
	Addr  uint64 // of its lowest byte; anything for an entry without elements
	Block int    // index of its block, which several entries may share; -1: somebody else holds it: it is only read and never given back
}

// Absolute and Scratch are the bases of an Addr that are no output.
const (
	Absolute int32 = -1 // Off is an address
	Scratch  int32 = -2 // Off counts from the begin of the scratch
)

// An Addr is a place in memory: an address, or an offset in memory that is
// allocated while the plan runs.
type Addr struct {
	Base int32  // Absolute, Scratch, or the batch of a spilled output
	Off  uint64 // bytes from the base
}

// plus is the place n bytes further on.
func (a Addr) plus(n int64) Addr {
	return Addr{a.Base, a.Off + uint64(n)}
}

// A Move is a Segment by address: contiguous bytes, repeated along its axes.
type Move struct {
	Dst, Src Addr
	Bytes    int64  // contiguous bytes, at least 1
	Axes     []Axis // outermost first, at most MaxAxes; owned by the plan
}

// StepKind says what a Step does.
type StepKind uint8

// The kinds of steps. Alloc and AllocScratch take memory from the caller's
// allocator, Free and FreeScratch give some back to it; Gather and Permute move bytes.
const (
	Alloc        StepKind = iota // output Batch, BatchBytes of it; also where that is 0
	AllocScratch                 // InPlace.Scratch bytes
	Gather                       // Moves, in any order and at once: no destination is a source or another's destination
	Permute                      // Perm
	Free                         // Blocks: their last use is behind
	FreeScratch
)

// A Step is one thing to do, after all steps before it.
type Step struct {
	Kind   StepKind
	Batch  int          // of Alloc
	Moves  []Move       // of Gather
	Perm   *Permutation // of Permute
	Blocks []int        // of Free: indices of blocks, ascending
}

// Options of PlanInPlace. The zero value never needs a cooperative launch and
// has no scratch.
type Options struct {
	Cooperative  bool  // Permute steps may be used
	ScratchBytes int64 // most scratch that may be allocated, in bytes; see DefaultScratchBytes
	TableLimit   int64 // most table bytes before another way is taken; 0: the larger of 64 KiB and 1 % of the job, or as much as the scratch that would do without. math.MaxInt64 for jobs that lie in collected ranges only
	NoAdopt      bool  // every output is allocated
}

// DefaultScratchBytes is the scratch that a caller without special wishes allows.
const DefaultScratchBytes = 32 << 20

// The strategies of an InPlace plan.
const (
	StrategyInPlace = "inplace" // every output that has bytes lies in the entries' memory
	StrategyMixed   = "mixed"   // some do, the others are allocated
	StrategyStream  = "stream"  // all are allocated, and the entries of each given back after it
)

// A Run is blocks that adjoin in one range: memory that an output can lie in.
type Run struct {
	Lo, Hi uint64 // addresses [Lo, Hi)
	Range  int
}

// InPlace is a plan that consumes its entries: outputs lie in the memory of the
// entries where that can be, and the others are allocated one by one while the
// blocks that have been read are given back. See the package comment.
//
// The plan refers to the layout, blocks and places that it was made from.
type InPlace struct {
	Layout *Layout
	Blocks []Block
	Places []Place
	Runs   []Run  // what outputs could be packed into, by address
	Steps  []Step // in order
	Outs   []Addr // per batch: Absolute where it lies in place, else Base is the batch and it is allocated
	// Under is, per batch in place, the blocks that it has to keep alive, ascending.
	// Every block with entries is kept by an output or given back in a Free step.
	// Where blocks are left over, an output that covers free room keeps some that it
	// does not cover, so that the Bytes kept are no fewer than the output's own and
	// the allocator's statistics stay honest.
	Under    [][]int
	Strategy string // one of the Strategy constants

	Growth         int64 // requested bytes that the steps rise above the level before them, at most
	Tables         int64 // device bytes that describe the permutations, at most
	Scratch        int64 // bytes of scratch, part of Growth
	ReservedGrowth int64 // bytes that torch's allocator reserves for the steps, at most; see ReservedBound
	MovedRows      int64 // rows that do not stay where they are
}

// PlanInPlace plans how to turn entries into outputs within their own memory.
//
// All entries lie on one device; a job over several is one plan for each. entries
// says how they lie, nil stands for contiguous ones. places has one place per
// entry. Neither is changed, and entries is not kept.
//
// Outputs are placed so that the growth is least, and then so that few bytes
// move. No byte is written outside blocks, outputs and scratch, none of a Fixed
// block, and none of an entry before its last read.
//
// It returns the errors of Plan.Build for the layout and the entries, a
// *DeviceError for batches on different devices, a *ShapeError for lists of the
// wrong length or a place outside of its block, and an *OverlapError for blocks that
// overlap one another or an entry of no block.
func PlanInPlace(l *Layout, entries []Entry, places []Place, blocks []Block, o Options) (*InPlace, error) {
	j := newInPlaceJob(l, places, blocks, o)
	defer j.release()
	if err := j.survey(entries); err != nil {
		return nil, err
	}
	p := j.plan()
	p.checkInvariants()
	return p, nil
}
