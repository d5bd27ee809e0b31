// collect_state.h: what the files of collect() share: all ranges, and how memory is supplied to
// them. The lock guards all of it; only collect.c and collect_tell.c take it.
#ifndef GOFLAT_GPU_COLLECT_STATE_H
#define GOFLAT_GPU_COLLECT_STATE_H

#include <pthread.h>

#include "collect_range.h"

enum { goflat_max_devices = 128 };

typedef struct {
	pthread_mutex_t lock;
	int forked; // a child has the parent's addresses but not its device memory
	goflat_range *ranges;
	int pressed[goflat_max_devices];       // the driver had no memory, or torch gave memory back
	uint64_t expected[goflat_max_devices]; // bytes of the last context, with slack; 0 if unknown
} goflat_shared;

extern goflat_shared goflat_state;

// goflat_state_range and goflat_state_range_at find a range by its id and by an address; NULL if
// there is none.
goflat_range *goflat_state_range(int64_t id);
goflat_range *goflat_state_range_at(uint64_t address);

// goflat_supply maps the memory of a new segment, and slack if the driver has it. Short of
// memory it gives what is free elsewhere back first. It returns 0 if that is not enough.
int goflat_supply(goflat_range *r, goflat_span segment);

// goflat_supply_end is up to where a range should be mapped at least whose last segment ends
// at `used`.
uint64_t goflat_supply_end(const goflat_range *r, uint64_t used);

// goflat_supply_trim gives a device's free memory back. One range without memory stays, which
// spares the next context a reservation.
void goflat_supply_trim(int device);

// goflat_supply_drop gives the addresses of ranges back that have neither content nor memory,
// but for so many.
void goflat_supply_drop(int device, int keep);

#endif
