// Internal to the C collector: what its files share with each other. Everything here needs the GIL.
#ifndef GOFLAT_COLLECT_H
#define GOFLAT_COLLECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "job.h"

// The Python objects the collector calls. NULL until registered: NumPy and torch are never imported by us.
typedef struct {
  PyObject *tensor, *ndarray, *cupy;     // types: torch.Tensor, numpy.ndarray, cupy.ndarray
  PyObject *empty, *np_empty;            // torch.empty, numpy.empty
  PyObject *resolve;                     // resolve(entry) -> entry to read | status | (code, got, want)
  PyObject *refuse_out;                  // refuse_out(array) -> None | True | status | (code, got, want)
  PyObject *attributes;                  // attributes(tensor) -> (address, shape, strides, code, bits, lanes, device type, device index)
  PyObject *cupy_attributes;             // the same of a cupy.ndarray, strides in bytes
  PyObject *cupy_empty;                  // cupy_empty(like, shape) -> cupy.ndarray on like's device
  PyObject *cupy_stream;                 // cupy_stream(device index) -> CuPy's current raw stream there
  PyObject *wrap;                        // wrap(first entry, ndarray) -> array of the first entry's framework
  PyObject *current_stream;              // current_stream(device index) -> raw CUDA stream, for torch without a table
  PyObject *is_grad_enabled;             // torch.is_grad_enabled
  PyObject *forward_ad;                  // the names of torch.autograd.forward_ad
  PyObject *watchers;                    // tuple of callables; one that returns true is a mode that wants to see torch.cat
} gf_hooks_t;
extern gf_hooks_t gf_hooks;

int gf_collect(gf_job *job);  // walk.c
PyObject *gf_shape_tuple(int32_t ndim, const int64_t *shape);  // outputs.c: a new reference
int gf_publish(gf_job *job, int32_t row_dims, const int64_t *row_shape);  // outputs.c: hands outputs and layout to the result list

// gf_job memory (job.c)
int gf_reserve_entries(gf_job *job, int64_t count);
int64_t gf_add_array(gf_job *job, const gf_dl_tensor *tensor, int strides_in_bytes);  // index into job->arrays, -1 out of memory
int gf_hold_managed(gf_job *job, void *managed, int versioned);
int gf_fail(gf_job *job, const char *code, int64_t key, int64_t batch, const char *got, const char *want);
int gf_fail_tuple(gf_job *job, PyObject *refusal, int64_t key, int64_t batch);
int gf_raise(gf_job *job);  // the job fails with the current Python exception
int64_t gf_elem_bytes(gf_dl_dtype dtype);
int gf_is_contiguous(const gf_dl_tensor *t, int strides_in_bytes);

// One array -> one gf_dl_tensor (read.c). The tensor's pointers are valid as long as the object lives and is not resized.
typedef struct {
  gf_dl_tensor tensor;
  int strides_in_bytes;
  int kind;
  int64_t dims[2 * GF_MAX_NDIM];  // backing store where the producer has none
} gf_view;
int gf_read_entry(gf_job *job, int64_t e, PyObject *object);
int gf_read_like(gf_job *job);  // the dtype to convert to; GF_FALLBACK where entries are not torch's
int gf_read_output(gf_job *job, PyObject *object, gf_view *view, int writable);  // GF_DONE, GF_FALLBACK or GF_ERROR with a Python exception set
const gf_dl_exchange *gf_exchange_of(PyTypeObject *type);

// Is this exact torch.Tensor plain data: no conj/neg/sparse/fake/... key, nothing that autograd should see? (plain.c)
// The hooks' answers are remembered: other tensors with the same dispatch keys need no look from Python.
int gf_is_plain(gf_job *job, PyObject *tensor);
int gf_is_writable(gf_job *job, PyObject *out);
void gf_remember_plain(PyObject *tensor);
void gf_remember_writable(PyObject *out);
int gf_is_watched(void);  // a dispatch mode, tracer or transform of torch.func is active that wants to see torch.cat

// Where the TensorImpl pointer of a torch.Tensor stands, which is what torch's C functions take as a tensor.
void *gf_tensor_handle(PyObject *tensor);

// What torch's stable C functions tell about a tensor (shims.c). Pointers are the tensor's own.
typedef struct {
  void *data;
  int64_t *sizes, *strides, ndim;  // strides in elements
  int32_t dtype, device_type, device_index;  // torch's own numbers
} gf_quick;
int gf_quick_read(PyObject *tensor, gf_quick *q);                                      // 1 if read
int gf_quick_tensor(const gf_quick *q, gf_dl_tensor *t);        // 1 if DLPack's words for q are known
void gf_quick_note(const gf_quick *q, const gf_dl_tensor *t);  // learns them from the same tensor read both ways
int gf_quick_watched(void);                                    // 1 yes, 0 no, -1 unknown
PyObject *gf_quick_make(const gf_quick *like, int64_t ndim, const int64_t *shape);     // NULL: use torch.empty
// A tensor of its own, not a view, over rows of a whole that q describes; NULL: cut it in Python.
PyObject *gf_quick_cut(PyObject *whole, const gf_quick *q, int64_t dim, int64_t start, int64_t rows);
// The same from the words of the TensorImpl (impl.c), for entries like the first: 1 if read.
int gf_impl_read(const gf_job *job, PyObject *tensor, gf_quick *q);
void gf_impl_first(gf_job *job, PyObject *tensor, const gf_quick *q, int64_t elem_bytes);
#define GF_FREED "a tensor whose memory was freed"
#define GF_WANT_MEMORY "a tensor with memory to read"
uint64_t gf_storage_data(PyObject *tensor);  // where the memory of its storage begins; 0: freed, or nobody knows
int gf_has_memory(PyObject *tensor, const gf_dl_tensor *t);  // 0: it has elements, and the memory of its storage was freed
int gf_learn_impl(PyObject *probes, PyObject *elsewhere);
void gf_prefetch(PyObject *object);  // what reading it will look at
int gf_append_parts(gf_job *job);  // of a packed buffer, see cut.c
void *gf_symbol(const char *library, const char *name);  // of a library that torch has loaded; NULL: not there
int gf_learn_shims(PyObject *tensors);  // 0: none work here, 1: reading works, 2: making too

#endif
