// collect.h: memory for goflat.collect, in plain C: torch calls alloc and free with its
// allocator's lock held, deleters call unclaim on any thread. Nothing here enters Go or
// Python, calls torch, or ends the process; a failure is a NULL, and torch's own error.
//
// A context has a range: addresses reserved in one piece, memory mapped from the start
// on, ahead of what torch asks for.
//
//	reserved ├──────────────────────────────────────────────────────────── ... ┤
//	mapped   ├───────── chunk ────────┼───────── chunk ────────┤
//	torch's  ├─ segment ─┼─ segment ─┤        ├─ segment ─┤
//	claimed          ├──── output ────────┤
//	free                              ├───┤                └─ slack ┘
//
// What holds:
//   - Segments do not overlap, and lie in mapped memory. A closed range gets no new ones.
//   - Memory under a segment or a claim stays mapped.
//   - Free memory stays mapped for the next context until torch gives its cache back
//     (empty_cache, or out of memory): then it goes back to the driver.
//   - Memory that one stream has used goes to another, or back to the driver, only after
//     the host has waited for the first.
//   - A range that nothing lies in is used again, from its start.
#ifndef GOFLAT_GPU_COLLECT_H
#define GOFLAT_GPU_COLLECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launch.h"

// goflat_collect_alloc and goflat_collect_free are what torch gets as an allocator.
// alloc takes memory from the range that is the thread's current one on the device.
void *goflat_collect_alloc(ssize_t bytes, int device, void *stream);
void goflat_collect_free(void *memory, ssize_t bytes, int device, void *stream);

// goflat_collect_claim says that an output lives in [lo, hi), unclaim that it is gone;
// each claim is ended once. claim returns 0 unless all of it is mapped memory of a range.
int goflat_collect_claim(uint64_t lo, uint64_t hi);
void goflat_collect_unclaim(uint64_t lo, uint64_t hi);

// goflat_collect_begin opens a range of so many bytes of addresses, or an eighth where
// there are no more, in a device's primary context, and makes it the thread's current
// one; it ends goflat_collect_keep. An id names one use of a range and does not come back.
goflat_status goflat_collect_begin(int device, uintptr_t context, uint64_t bytes, int64_t *id);

// goflat_collect_reopen is goflat_collect_begin on a device where that has succeeded before.
// It returns the id, 0 where it has not or fails now.
int64_t goflat_collect_reopen(int device);

// goflat_collect_select makes an open range the thread's current one on its device;
// 0 leaves the thread without one.
void goflat_collect_select(int device, int64_t id);

// goflat_collect_end closes a range. What lies in it stays.
void goflat_collect_end(int64_t id);

// goflat_collect_go_on ends a range and selects the next, 0 for none. Then it answers whether
// there is memory that nobody has and no canary to watch it.
int goflat_collect_go_on(int device, int64_t id, int64_t next);

// goflat_collect_idle says that a range is closed and nothing lies in it, or that there is
// no use of that id any more.
int goflat_collect_idle(int64_t id);

// goflat_collect_keep tells whether memory that torch frees on this thread is kept for
// the next context (1) or means that torch gives its cache back (0, at first).
void goflat_collect_keep(int on);

// goflat_collect_arm makes the next allocation on this thread and device the canary: an
// address without memory, which torch frees together with all else that it caches.
void goflat_collect_arm(int device);
int goflat_collect_armed(int device); // whether there is one; ends the wait for the allocation

// goflat_collect_pressed says whether the device was short of memory since the last call:
// torch gave its cache back, or the driver refused memory.
int goflat_collect_pressed(int device);

// goflat_collect_ready begins to keep, and is goflat_collect_pressed.
int goflat_collect_ready(int device);

// goflat_collect_use says that a stream uses outputs in the range of an address.
void goflat_collect_use(uint64_t address, uintptr_t stream);

// goflat_collect_trim gives a device's free memory back to the driver, and all addresses
// without memory.
void goflat_collect_trim(int device);

typedef struct {
	uint64_t lo, hi;
} goflat_span;

// goflat_collect_room writes up to max spans of a range: free memory, in the order
// of addresses. With prepare, it maps slack where there is too little, waits for other
// streams that have used the memory, and counts on the given one to use it; there is no
// room if it cannot, or if the range is open.
// It returns how many there are, which may be more than max.
size_t goflat_collect_room(int64_t id, uintptr_t stream, int prepare, goflat_span *spans, size_t max);

// goflat_collect_claims writes up to max claims of a range, in the same way.
size_t goflat_collect_claims(int64_t id, goflat_span *spans, size_t max);

// goflat_collect_range finds the range of an address. [lo, hi) is its mapped memory, of
// which there may be holes.
int goflat_collect_range(uint64_t address, int64_t *id, uint64_t *lo, uint64_t *hi);

// goflat_collect_bytes is how much memory is mapped on a device, and how much of it
// lies under torch's segments, and under neither a segment nor a claim.
typedef struct {
	uint64_t mapped, segments, free;
} goflat_collect_count;
goflat_collect_count goflat_collect_bytes(int device);

#endif
