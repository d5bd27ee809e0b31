// Internal to the ownership checks and adopted outputs: torch tensors as C++ objects, without Python objects (handle.c).
#ifndef GOFLAT_HANDLE_H
#define GOFLAT_HANDLE_H

#include "words.h"

typedef void *gf_handle;  // at::Tensor *

// What the survey needs of a tensor.
typedef struct {
  uint64_t address;  // of element 0; 0 if there is none
  int64_t offset;    // of it in the storage, in elements
  int64_t elements, bytes, span;  // span: bytes from the first to the last byte touched
  int64_t elem_bytes;             // 0: a dtype whose size is not known
  int32_t dtype, device_type, device_index;  // torch's own numbers
  int contiguous;
} gf_extent;

int gf_handle_extent(gf_handle tensor, gf_extent *x);  // 0, or -1 where torch refuses

// A new flat tensor over all of the storage of tensor, of its dtype: it has no Python object, so that gf_handle_drop
// needs no GIL and may run on any thread. NULL where torch refuses.
gf_handle gf_handle_over(gf_handle tensor);
// A new row-major tensor of a shape over the storage of flat, offset elements from its start.
gf_handle gf_handle_cut(gf_handle flat, int32_t ndim, const int64_t *shape, int64_t offset);
void gf_handle_drop(gf_handle tensor);
PyObject *gf_handle_wrap(gf_handle tensor);  // a Python tensor; the handle is still the caller's
const void *gf_handle_impl(gf_handle tensor);
const void *gf_handle_storage(gf_handle tensor);

// Would torch make a tensor of this one's dtype and device with the same dispatch keys now? It would not where one of
// the two is an inference tensor.
int gf_handle_is_usual(gf_handle tensor);

// sizes is a list of (tensor, element size) with one tensor per dtype, views one of tensors in the middle of storages.
// 1 if torch's C functions do what they should. Needs gf_learn_words.
int gf_learn_handles(PyObject *sizes, PyObject *views);

extern int gf_handles_ready;

#endif
