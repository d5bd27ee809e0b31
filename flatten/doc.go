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
// The build tag goflat_invariants has every build check these and panic with the
// plan if one is broken.
//
// # The plain form
//
// [Apply] is the meaning of a plan: the loops as they stand. [Plan.Execute] moves
// the same bytes faster, and is tested against Apply, and Apply against a copy
// element by element.
//
// # Errors
//
// All errors are about what the caller passed and come before the first byte
// moves: [ShapeError], [DTypeError], [DeviceError], [OverlapError], each with key,
// batch, what was there and what should have been, and each also found by errors.Is
// with [ErrShape] and so on.
package flatten
