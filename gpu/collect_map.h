// collect_map.h: the driver's part of a range: addresses, memory, and waiting for streams.
#ifndef GOFLAT_GPU_COLLECT_MAP_H
#define GOFLAT_GPU_COLLECT_MAP_H

#include "collect_range.h"

// goflat_map_reserve reserves addresses for a new range; NULL with the reason in *status.
goflat_range *goflat_map_reserve(int device, uintptr_t context, uint64_t bytes, goflat_status *status);

// goflat_map_release gives the addresses of a range without memory back, and frees it;
// or it returns 0 and leaves it as it is.
int goflat_map_release(goflat_range *r);

// goflat_map_cover maps what is not mapped of [lo, hi), of whole units, in chunks. It
// returns 0 if the driver gives no more; what it mapped until then stays.
int goflat_map_cover(goflat_range *r, uint64_t lo, uint64_t hi);

// goflat_map_trim unmaps the chunks that lie under no segment and no claim.
void goflat_map_trim(goflat_range *r);

// goflat_map_settle waits for what other streams than one of them did with memory that
// is free now. It returns 0 if it cannot wait, as during a capture.
int goflat_map_settle(goflat_range *r, uintptr_t stream);

// goflat_map_idle waits for all of them.
int goflat_map_idle(goflat_range *r);

#endif
