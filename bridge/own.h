// Who else uses the memory of an entry? The survey answers for every entry of a job, so that flatten_ changes nothing
// that a caller still holds.
//
// An entry may be written over only if every reference to its Python object, to torch's C++ tensor and to its storage
// comes from the job. Views of one storage are judged together: what counts is whether entries, and at most one dead
// tensor that they are views of, are all that uses it.
//
// The survey changes nothing: no reference survives it, and where the words of torch's objects were found (words.c) no
// Python code runs between the first count and the last, so that its answers belong to one moment.
#ifndef GOFLAT_OWN_H
#define GOFLAT_OWN_H

#include <stdint.h>

// Why an entry may not be adopted. The order tells what is allowed: 0 may be written and given back, up to
// GF_OWN_OVERLAP may be given back but never written, anything above may only be read.
enum {
  GF_OWN_ADOPTABLE = 0,
  GF_OWN_STRIDED = 1,    // its elements do not lie in row-major order without gaps
  GF_OWN_FOREIGN = 2,    // memory that torch's allocators did not make (from_numpy, frombuffer, from_dlpack, shared, pinned)
  GF_OWN_OVERLAP = 3,    // another entry shares bytes with one of this storage
  GF_OWN_HELD = 4,       // somebody holds the Python object
  GF_OWN_SAVED = 5,      // torch's C++ side holds the tensor: saved for backward, an attribute of a ScriptModule, DLPack, a live view
  GF_OWN_SHARED = 6,     // tensors that are no entries, or entries that somebody holds, use the storage
  GF_OWN_STORAGE = 7,    // somebody holds the storage object: t.untyped_storage() or t.storage()
  GF_OWN_LEAF = 8,       // a leaf that requires grad
  GF_OWN_TWICE = 9,      // the same tensor is an entry twice
  GF_OWN_NOT_PLAIN = 10, // a subclass, a parameter, conjugated, fake, sparse, ...
  GF_OWN_MODE = 11,      // a dispatch mode, tracer or transform of torch.func watches: nothing is adopted
  GF_OWN_NOT_TORCH = 12, // an array of another library, which does not tell who uses its memory
  GF_OWN_UNKNOWN = 13,   // could not be found out
};

enum {
  GF_OWN_IS_STRIDED = 1,
  GF_OWN_IS_GRAD = 2,     // requires grad. With reason GF_OWN_ADOPTABLE it is no leaf: backward needs its sizes only
  GF_OWN_IS_VIEW = 4,     // a view of a tensor that is dead or no entry
  GF_OWN_IS_ADOPTED = 8,  // its memory is that of a living adopted output (adopt.h), wholly or in part
};

// One entry. Addresses and storage_* are 0 where the reason is GF_OWN_NOT_TORCH, GF_OWN_NOT_PLAIN or above LEAF.
typedef struct {
  uint64_t address;          // of element 0, which for torch is the lowest byte
  int64_t bytes;             // payload: elements times element size
  uint64_t storage;          // identity of the storage while an entry lives; equal for views of one storage; 0: unknown
  uint64_t storage_address;  // the storage's first byte
  int64_t storage_bytes;     // as requested, without what the allocator rounded up
  int32_t device_type, device_index;  // DLPack's numbers
  int32_t flags, reason;              // GF_OWN_IS_..., GF_OWN_...
} gf_own;
_Static_assert(sizeof(gf_own) == 56, "goflat._ownership unpacks records of 56 bytes");

// Fills one record per object. objects are borrowed Python objects that the caller keeps alive; expected is how many
// Python references to each of them the job accounts for (one of the user's list, one of the job, say). made, if not
// NULL, has for each of them how many outputs of the job use its storage by now. The caller holds the GIL. 0, or -1
// with a Python exception pending.
int gf_survey(void *const *objects, int64_t count, int64_t expected, gf_own *records, const int32_t *made);

// The same for a Python list; takes the GIL. The number of adoptable entries, or -1 with the exception parked for
// gf_take_exception.
int64_t gf_survey_list(uint64_t list, int64_t expected, uint64_t records);

// Surveys a list once more, and compares with the records of before. The number, counted from 1, of the first entry that
// could be given up then and has got another user since, or that no longer lies where it lay; 0 if there is none; -1
// with the exception parked. Takes the GIL. No Python code has run since the counts were read when it returns to a caller that runs none.
int64_t gf_changed(uint64_t list, int64_t expected, uint64_t before, uint64_t made);

// Learns where torch keeps counts; probes is a dict made by goflat._ownership. 1 if the quick way works, 0 if every
// entry is asked about through Python attributes. Takes the GIL.
int gf_learn_ownership(uint64_t probes);

#endif
