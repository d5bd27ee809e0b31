// Internal to adopted outputs: the table of those over foreign memory that are alive (adopted.c). May be asked on any
// thread, with or without the GIL.
#ifndef GOFLAT_ADOPTED_H
#define GOFLAT_ADOPTED_H

#include "parts.h"

typedef void (*gf_unclaim)(uint64_t lo, uint64_t hi);

typedef struct gf_record {
  gf_dl_managed_versioned versioned;  // one of the two is what torch owns
  gf_dl_managed legacy;
  gf_parts parts;
  uint64_t claim_lo, claim_hi;
  gf_unclaim unclaim;         // NULL: nothing to tell
  const void *storage;        // identity of torch's storage; NULL until gf_adopted_enter
  int *gone;                  // set when the record ends, while it is made; NULL later
  struct gf_record *next;
  int64_t dims[];             // extents, then strides
} gf_record;

// A record of a tensor, which takes over parts; NULL: no memory, and parts are the caller's still.
gf_record *gf_record_new(const gf_dl_tensor *tensor, const int64_t *shape, gf_parts *parts);
void gf_record_end(gf_record *record);  // what the deleters do: drops parts, tells unclaim, frees
void gf_adopted_enter(gf_record *record, const void *storage);

// The parts under some bytes of the adopted output of this storage, or all if none lies there, each with a reference.
// 1 if there is such an output, 0 if not, -1 no memory.
int gf_adopted_parts_of(const void *storage, uint64_t data, uint64_t address, int64_t bytes, gf_parts *parts);

#endif
