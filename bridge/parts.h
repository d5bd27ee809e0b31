// Internal to adopted outputs: the storages under them (parts.c).
#ifndef GOFLAT_PARTS_H
#define GOFLAT_PARTS_H

#include "handle.h"

// One storage that adopted outputs keep alive. Counted; the last gf_part_release drops it, on any thread.
typedef struct {
  int64_t refs;
  void *holder;      // a gf_handle, or a PyObject where handles are not to be had
  int is_python;
  uint64_t lo, hi;   // the storage's bytes
} gf_part;

gf_part *gf_part_retain(gf_part *part);
void gf_part_release(gf_part *part);
PyObject *gf_part_tensor(const gf_part *part);  // a new flat tensor over the storage, with a Python object of its own

typedef struct {
  gf_part **items;  // each once, each with a reference of its own
  int64_t len;
} gf_parts;
void gf_parts_release(gf_parts *parts);

// The parts under an output of some bytes at an address: those of the adopted outputs among tensors that lie under it,
// or all of an adopted output's where none does, and one per other storage. 0, or -1 with a Python exception.
int gf_parts_gather(void *const *tensors, int64_t count, uint64_t address, int64_t bytes, gf_parts *parts);

#endif
