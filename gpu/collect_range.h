// collect_range.h: what is known about a range, and the questions about it that need no
// driver. All of it is guarded by the lock of collect_state.h.
#ifndef GOFLAT_GPU_COLLECT_RANGE_H
#define GOFLAT_GPU_COLLECT_RANGE_H

#include "collect.h"

// What torch asks for, what is mapped and where segments start are multiples of 2 MiB, the
// driver's granularity.
static const uint64_t goflat_unit = (uint64_t)2 << 20;

static inline uint64_t goflat_round_up(uint64_t bytes)
{
	return (bytes + goflat_unit - 1) / goflat_unit * goflat_unit;
}

// goflat_spans is a growing array of spans, sorted by their starts.
typedef struct {
	goflat_span *at;
	size_t len, cap;
} goflat_spans;

// goflat_streams is a small set of streams. Where it overflows it means all of them.
typedef struct {
	uintptr_t at[8];
	size_t len;
	int all;
} goflat_streams;

typedef struct goflat_range {
	struct goflat_range *next;
	int64_t id;
	int device, open;
	uintptr_t context;       // the device's primary one
	uint64_t lo, hi;         // reserved
	goflat_spans chunks;     // mapped, do not overlap
	goflat_spans segments;   // torch's, do not overlap
	goflat_spans claims;     // may overlap
	int holes;               // a segment was freed: there may be room between others
	goflat_streams past;     // have used what is free now
	goflat_streams users;    // use what is claimed
} goflat_range;

// goflat_spans_add returns 0 if there is no memory.
int goflat_spans_add(goflat_spans *s, goflat_span span);
void goflat_spans_remove(goflat_spans *s, size_t i);

// goflat_spans_after is the first of spans that do not overlap which ends behind an address.
size_t goflat_spans_after(const goflat_spans *s, uint64_t address);

void goflat_streams_add(goflat_streams *s, uintptr_t stream);
void goflat_streams_join(goflat_streams *s, const goflat_streams *other);

// goflat_range_busy finds the lowest segment or claim that ends behind an address.
int goflat_range_busy(const goflat_range *r, uint64_t address, goflat_span *busy);

// goflat_range_place finds a place for a segment: the lowest one, so that ranges stay
// short. 0 if there is none.
uint64_t goflat_range_place(const goflat_range *r, uint64_t bytes);

// goflat_range_used is where the last segment ends.
uint64_t goflat_range_used(const goflat_range *r);

// goflat_range_mapped is where the memory ends that is mapped without a hole from an
// address on; the address itself if there is none.
uint64_t goflat_range_mapped(const goflat_range *r, uint64_t address);

// goflat_range_idle says that nothing lies in a closed range.
int goflat_range_idle(const goflat_range *r);

uint64_t goflat_spans_bytes(const goflat_spans *s); // of spans that do not overlap

#endif
