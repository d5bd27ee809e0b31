// Adopted outputs: tensors over memory that came with the entries.
//
// An output that lies inside one storage becomes an ordinary tensor over that storage: resizable, known to torch's
// allocator. One that spans several becomes a tensor over foreign memory, made through DLPack, with a record: its
// deleter is plain C, needs no GIL, may run on any thread and at exit, and drops exactly the storages under the output.
//
//	output  ├──────────────────────────────┤        record ──► part (storage 1), part (storage 2), part (storage 3)
//	memory  ├ storage 1 ┤├ storage 2 ┤ gap ├ storage 3 ┤
//
// A part is one storage, counted: if an adopted output is itself an entry later on, the new record takes over the
// parts under the new output, so that adopting again and again makes no chain.
#ifndef GOFLAT_ADOPT_H
#define GOFLAT_ADOPT_H

#include <stdint.h>

typedef struct {
  uint64_t address;     // of the output's first byte
  int32_t ndim;
  const int64_t *shape; // row-major; at least one byte in all
  void *like;           // borrowed PyObject: an entry whose dtype and device the output gets
  void *const *under;   // borrowed PyObjects: entries whose storages the output keeps alive; several may share one
  int64_t under_len;
  uint64_t lo, hi;      // what unclaim is told
  uint64_t unclaim;     // address of a void (*)(uint64_t lo, uint64_t hi) that may run on any thread; 0: none
} gf_adoption;

// Makes the output: a new reference, or NULL with a Python exception pending. *foreign, if not NULL, tells whether it
// is one over foreign memory. unclaim is called when its memory is given back; at once if it lies inside one storage,
// which needs no claim; never if NULL is returned. Nothing is read or written at the address. The caller holds the GIL.
void *gf_adopt(const gf_adoption *a, int *foreign);

// The same with Python's objects, appending the tensor to the list result: shape is a tuple, under a list. Takes the
// GIL. 1 foreign, 0 inside one storage, -1 with the exception parked for gf_take_exception.
int64_t gf_adopt_into(uint64_t address, uint64_t shape, uint64_t like, uint64_t under, uint64_t lo, uint64_t hi,
                      uint64_t unclaim, uint64_t result);

// Appends to list one flat tensor per part of the adopted output whose memory tensor (a torch.Tensor, maybe a view)
// lies in, so that record_stream reaches torch's allocator. Takes the GIL. How many; 0: no adopted output; -1 as above.
int64_t gf_adopted_parts(uint64_t tensor, uint64_t list);

// Is this StorageImpl, whose memory starts at data, that of a living adopted output over foreign memory?
int gf_adopted_is(const void *storage, uint64_t data);

int64_t gf_live_adopted(void);  // records of outputs that are still alive

#endif
