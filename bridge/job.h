// One call of flatten as plain C memory: what the collector read from Python, and what Go needs to plan and to copy.
//
// A job lives from gf_open to gf_close on one OS thread. Between the two it owns a reference to every entry, so the
// addresses in it stay valid also while the GIL is released for the copy.
#ifndef GOFLAT_JOB_H
#define GOFLAT_JOB_H

#include "dlpack_abi.h"

// How a call ended. Anything but GF_ERROR is no failure: it tells Python which way to take.
enum {
  GF_DONE = 0,       // outputs are in the result list
  GF_GRAD = 1,       // some entry requires grad and grad mode is on: Python calls again outside of it, and records
  GF_FALLBACK = 2,   // something only the framework itself does right (subclasses, dispatch modes, odd dtypes)
  GF_NORMALISE = 3,  // the containers are not dict/OrderedDict of list/tuple: Python reads them and calls again
  GF_ERROR = 4,      // job->error says what, or a Python exception is pending
  GF_UNPROVED = 5,   // conversions have not been compared with torch's on a device: Python does and calls again
  GF_RECORD = 6,     // done, and autograd has to be told: the result's _columns has the entries of each batch, a tuple of tuples
  GF_FILL = 7,       // as GF_DONE, but the outputs are still to be filled, by torch's own conversions on the CPU
};

enum { GF_KIND_NONE = 0, GF_KIND_TORCH, GF_KIND_NUMPY, GF_KIND_CUPY, GF_KIND_EXCHANGE, GF_KIND_DLPACK };  // whose arrays these are

// What the caller asks for. RECORD: the caller records outputs for autograd, so that entries may require grad; for a
// result with attributes, without outputs of the caller.
enum { GF_FLAG_ONE_KEY = 1, GF_FLAG_PACKED = 2, GF_FLAG_NO_GRAD = 4, GF_FLAG_LAYOUT = 8, GF_FLAG_RECORD = 16 };

// RECORDING: on, and some entry requires grad.
enum { GF_AUTOGRAD_UNKNOWN = 0, GF_AUTOGRAD_OFF, GF_AUTOGRAD_ON, GF_AUTOGRAD_DUALS, GF_AUTOGRAD_RECORDING };

enum { GF_MAX_NDIM = 64, GF_TEXT = 512 };

// Full description of one array. Strides are in elements.
typedef struct {
  gf_dl_dtype dtype;
  gf_dl_device device;
  int32_t ndim, contiguous;
  int64_t dims;  // index into job->dims: ndim extents, then ndim strides
} gf_array;

typedef struct {
  const char *code;  // SHAPE, DTYPE, DEVICE, ...; static text
  int64_t key, batch;
  char got[GF_TEXT], want[GF_TEXT];
} gf_error;

typedef struct gf_hold gf_hold;

typedef struct gf_job {
  int64_t keys, batches, dim;
  int32_t kind, flags, status, autograd;
  int32_t gil, holding;  // token of PyGILState_Ensure; whether this thread has the GIL

  // One slot per entry, key-major: e = key * batches + batch.
  uint64_t *data;   // address of element 0
  int64_t *rows;    // extent along dim; meaningful for entries that are like the first
  int32_t *odd;     // index into arrays, or -1: contiguous and like the first entry in all but its rows
  void **objects;   // PyObject*, owned
  int64_t entries_cap;
  int64_t entries;  // slots filled so far (owned references)

  gf_array *arrays;  // arrays[0] describes the first entry, then every odd entry, then the outputs given by the caller
  int64_t arrays_len, arrays_cap;
  int64_t *dims;
  int64_t dims_len, dims_cap;

  gf_hold *holds;  // DLPack tensors taken out of capsules; their deleters run at gf_close
  int64_t holds_len, holds_cap;

  void **outs;          // PyObject*, owned: one output per batch (one in all when packed)
  uint64_t *out_data;   // addresses of their first elements
  int32_t *out_odd;     // index into arrays for outputs the caller gave, else -1
  int64_t outs_len, outs_cap;

  int32_t quick;  // the first entry was read by torch's C functions, as this dtype on this device (torch's numbers)
  int32_t quick_dtype, quick_device_type, quick_device_index;
  int32_t by_words;     // entries whose TensorImpl has this kind word are read by its words (impl.c)
  uint64_t kind_word;
  int64_t elem_bytes;
  const gf_dl_exchange *api;  // of the first entry's type; NULL if it has none
  void *features, *result;    // borrowed: the caller's containers, alive during the call
  void *like;  // borrowed: a tensor whose dtype the outputs are to have, NULL: that of the entries
  gf_dl_dtype like_dtype;
  void *names;      // owned: tuple of the keys as the walk met them, NULL for a list of tensors
  void *exception;  // owned: the Python exception that error stands for
  gf_error error;
} gf_job;

// gf_open takes the GIL for the calling thread and reads the containers; the job's status says how that went. like is 0
// or the address of a tensor of the dtype to convert to.
// NULL: no memory, and the GIL is not held. gf_close, told the shape of a row, hands the outputs over if publish is set, ends the job, and gives
// the GIL back; it returns GF_DONE, or GF_ERROR with a parked exception. Both see to the GIL so that a small call
// crosses between Go and C three times only.
gf_job *gf_open(uint64_t features, uint64_t result, int64_t dim, int32_t flags, uint64_t like);
int gf_close(gf_job *job, int publish, int32_t row_dims, const int64_t *row_shape);
void gf_pause(gf_job *job);  // gives the GIL away for a long copy
void gf_resume(gf_job *job);

// These run between gf_open and gf_close, not while paused. They return GF_DONE or another status above.
int gf_current_stream(gf_job *job, int32_t device, uint64_t *stream);  // the framework's, on a CUDA device
int gf_take_outputs(gf_job *job, uint64_t outs);  // outputs given by the caller
int gf_reserve_outs(gf_job *job, int64_t count);
int gf_make_outputs(gf_job *job, int32_t ndim, int64_t *shape, int32_t dim, int64_t batches, const int64_t *rows);

// These need no job and take the GIL themselves.
int gf_register(uint64_t hooks);          // dict of Python callables and types, see hooks.c
int gf_learn_torch(uint64_t probes, uint64_t plain);  // lists of probes and of tensors, see plain.c; 0 nothing, 1 words, 2 reads, 3 makes
int gf_learn_impl_words(uint64_t probes, uint64_t elsewhere);  // see gf_learn_impl; 1 learnt
int gf_take_exception(uint64_t list);     // moves the pending exception of this thread into a list
int64_t gf_live(void);                    // jobs begun and not ended

#endif
