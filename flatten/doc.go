// Package flatten plans and runs the move from a dictionary of lists of tensors
// to one tensor per batch.
//
// Key k has one tensor per batch b, its entry: rows of one shape, as many as it
// likes, also none. Output b gets the rows of all keys, in key order. Two keys, two
// batches, a row a letter:
//
//	            batch 0   batch 1
//	           +-------+---------+            +-----------+
//	key "p2"   | a b   | c d e   |   output 0 | a b f     |
//	           +-------+---------+            +-----------+
//	key "p3"   | f     | g       |   output 1 | c d e g   |
//	           +-------+---------+            +-----------+
//	                entries                      outputs
//
// which is, for every b, torch.cat([features[k][b] for k in features]), bit for
// bit and for all outputs at once. The package knows shapes, strides and bytes; it
// knows no tensors and no devices. Go programs call [Slices] on their slices and
// need nothing else. Everybody else goes three steps:
//
//	layout, err := flatten.NewLayout(keys, batches, entries, dim) // do the entries fit together?
//	plan, err := flatten.NewPlan(layout, entries, outs)           // which bytes go where?
//	plan.Execute(dst, src, 0)                                     // move them
//
// # Words
//
// An entry is the tensor of one key and one batch; entry (k, b) has index
// k*batches+b in every list. A row is a slice of an entry along the dim that is
// concatenated. A [Layout] is the shapes and the type of all entries. A [Plan] is a
// list of [Segment]s, and a segment is contiguous bytes that move together,
// perhaps several times at a fixed step. The plan above, of rows of 4 bytes, is
//
//	entry 0 -> batch 0: src 0, dst 0, 8 bytes
//	entry 2 -> batch 0: src 0, dst 8, 4 bytes
//	entry 1 -> batch 1: src 0, dst 0, 12 bytes
//	entry 3 -> batch 1: src 0, dst 12, 4 bytes
//
// # Strides
//
// Entries and outputs may lie in memory in any way that strides can say:
// transposed, with gaps, reversed, expanded (entries only). The planner writes the
// move of an entry as nested loops, one per dim, turns loops that run backwards in
// the output, sorts them by their step in the output, and joins those that continue
// one another on both sides. What is left is the longest runs there are, and the
// fewest axes around them: a channels-last entry into a channels-last output is
// one memcpy.
//
// # Invariants
//
// What a plan from Build or BuildPlain promises, and what a program that runs one
// elsewhere, such as a GPU kernel, may lean on:
//
//   - Every byte of every element of an entry lands exactly once; an expanded
//     element lands once for each place that it stands for.
//   - Segments tile each output without holes: every byte of an output's elements
//     is written exactly once. Bytes between the elements are not touched.
//   - No two segments write the same byte, so they may run in any order, also at once.
//   - Segments are sorted by batch, then by key. An entry without elements has none.
//   - Segment.Bytes is at least one element, a whole number of them, and at least 1.
//   - There are at most [MaxAxes] axes, outermost first, each with N of 2 or more
//     and DstStep of 1 or more. SrcStep may be anything.
//   - Src and Dst count from the lowest byte that the entry or output touches, see
//     [View.Span]. No segment reads or writes outside of that span.
//   - All numbers are 64 bits wide and none overflows; a job for which one would is
//     refused with a [ShapeError].
//
// The build tag goflat_invariants has every build check these and those of plans in
// place, and panic with the plan if one is broken.
//
// # The plain form
//
// [Apply] is the meaning of a plan: the loops as they stand. [Plan.Execute] moves
// the same bytes faster, and is tested against Apply, and Apply against a copy
// element by element.
//
// # In place
//
// [PlanInPlace] plans to consume the entries: outputs lie where entries were, so
// that memory hardly grows or not at all. It knows addresses and sizes, and who owns
// what, but touches no memory: a plan is steps for whoever does. Six entries of two
// rows each lie in one block, the numbers are rows, the outputs are to have
// batches:
//
//	            batch 0   batch 1   batch 2
//	           +---------+---------+---------+
//	key "p2"   | 0 1     | 2 3     | 4 5     |
//	key "p3"   | 6 7     | 8 9     | a b     |
//	           +---------+---------+---------+
//
//	block      | 0 1 | 2 3 | 4 5 | 6 7 | 8 9 | a b |    before
//	           | 0 1 | 6 7 | 2 3 | 8 9 | 4 5 | a b |    after
//	             output 0  |  output 1 |  output 2
//
// The first and the last entry stay, and the others go round: place 1 gets what is
// in place 3, 3 what is in 4, 4 what is in 2, and 2 what was in 1. That is a chain of
// a [Permutation], closed here. A unit is what moves together, two rows in this
// case. Where a place is free before, such as a gap, a chain begins there and is
// open: its last place becomes free.
//
// Who may write where is said in [Block]s: memory that nobody but entries uses.
// Blocks that adjoin within one allocation or mapped range make a [Run], and outputs
// are packed into runs, each into one. What the planner does then, by what it costs:
//
//   - Everything lies where it must: no step.
//   - There is room for the outputs beside the entries: one Gather.
//   - All entries and outputs of a run begin on one grid of rows: one Permute over
//     all runs together, without scratch.
//   - Entries lie off the grid, with some free room: pages (see pages.go). Waves of
//     Gather steps assemble them in free frames, one Permute brings them home.
//   - The same with smaller units than rows, or with scratch.
//   - Not all outputs fit: some are allocated one by one (spilled), those whose
//     entries would be overwritten before the others, and blocks that nothing needs
//     any more are given back after each.
//
// What an [InPlace] plan promises:
//
//   - After the steps, each output equals that of the plain plan, bit for bit.
//   - No byte is written outside of runs, spilled outputs and the scratch; none in a
//     Fixed block, and none of an entry of no block.
//   - No byte is written that a later step reads as an entry's. In a Gather no
//     destination is a source or another's destination, so that its moves may run in
//     any order and at once; in a Permute no position occurs twice.
//   - Outputs in place lie in one run each, share no bytes, and begin at a multiple of
//     their element size, of 16 bytes where there is room for that.
//   - A block is given back once, after the last step that reads or writes it, or
//     kept by at least one output; one that an output lies on is kept by that.
//   - A spilled output is allocated right before the Gather that fills it; the
//     scratch is there from AllocScratch to FreeScratch.
//   - Growth is the highest level of requested bytes while the steps run, above that
//     before the first: allocated outputs and scratch, less the Bytes of blocks given
//     back. The prediction is exact.
//   - A move lies within one entry, run, output or scratch on either side.
//
// [InPlace.Run] is the meaning of Gather and Permute steps, and runs them on a CPU.
//
// # Errors
//
// All errors are about what the caller passed and come before the first byte
// moves: [ShapeError], [DTypeError], [DeviceError], [OverlapError], each with key,
// batch, what was there and what should have been, and each also found by errors.Is
// with [ErrShape] and so on.
package flatten
