// Package launch decides how kernels move the bytes of a plan: which kernel, which
// grid, and what the parameters say. It is pure Go and knows nothing of CUDA.
//
// [Gather.Run] sorts a device's segments into classes, writes each
// class into tables that fit into a kernel's parameters, and hands every full table
// to its caller as a [Launch]:
//
//	segments of the plan           classes      tables (launches)
//	  2 MB plain     ──────────►   long     ──► gather_block     512 threads a tile
//	  64 B plain     ──────────►   short    ──► gather_warp       32 threads a tile, or
//	                                            gather_narrow     the same, shorter records
//	  runs of 4 KB   ──────────►   whole    ──► gather_pieces     32 threads a piece of a run
//	  runs of 512 B  ──────────►   vectors  ──► gather_vectors    a thread 16 bytes, aligned
//	  runs of 196 B  ──────────►   slotted  ──► gather_slots      a thread 16 bytes of the destination
//	  runs of 12 B   ──────────►   tiny     ──► gather_units      a thread a unit
//	  some of each   ──────────►            ──► gather_mixed
//
// Classes that are too small to be worth a launch of their own join another: an
// ordinary job is one launch.
//
// What holds:
//   - The launches together move each byte of the plan's segments exactly once, and
//     no other; they may run in any order.
//   - Offsets and addresses are 64 bits wide. A launch moves fewer than 2^31 bytes,
//     which it numbers with 32 bits.
//   - A grid has one dimension, of fewer than 2^31 blocks.
//   - Run allocates nothing.
//
// The layout of a table is described in gpu/kernels/table.cuh.
package launch
