// Memory of a job: growing its tables, recording an error, releasing everything once.
#include "collect.h"

struct gf_hold {
  void *managed;
  int versioned;
};

static int64_t live;         // jobs begun and not ended
static gf_job *spare;        // one job kept between calls, so that a repeated call allocates nothing

// Exceptions on their way to gf_take_exception, NULL for none. A stack: before the newest is taken, a finalizer or a
// signal handler may run calls of its own.
static __thread PyObject *parked;

enum { GF_KEEP_ENTRIES = 1 << 16 };  // a spare job larger than this (about 2 MB of tables) is given back

int64_t gf_live(void) { return live; }

void gf_pause(gf_job *job) {
  PyGILState_Release((PyGILState_STATE)job->gil);
  job->holding = 0;
}

void gf_resume(gf_job *job) {
  job->gil = (int32_t)PyGILState_Ensure();
  job->holding = 1;
}

int64_t gf_elem_bytes(gf_dl_dtype dtype) { return ((int64_t)dtype.bits * dtype.lanes + 7) / 8; }

static gf_job *begin(uint64_t features, uint64_t result, int64_t dim, int32_t flags, uint64_t like) {
  gf_job *job = spare;
  spare = NULL;
  if (job == NULL) job = calloc(1, sizeof *job);
  if (job == NULL) return NULL;
  job->features = (void *)features;
  job->result = (void *)result;
  job->like = (void *)like;
  job->dim = dim;
  job->flags = flags;
  live++;
  return job;
}

gf_job *gf_open(uint64_t features, uint64_t result, int64_t dim, int32_t flags, uint64_t like) {
  PyGILState_STATE gil = PyGILState_Ensure();
  gf_job *job = begin(features, result, dim, flags, like);
  if (job == NULL) {
    PyGILState_Release(gil);
    return NULL;
  }
  job->gil = (int32_t)gil;
  job->holding = 1;
  job->status = gf_collect(job);
  if (job->status == GF_DONE && like != 0) job->status = gf_read_like(job);
  return job;
}

// Makes *table hold at least count elements of the given size.
static int grow(void *table, int64_t *cap, int64_t count, size_t size) {
  if (count <= *cap) return GF_DONE;
  int64_t want = *cap * 2 > count ? *cap * 2 : count;
  void *bigger = realloc(*(void **)table, (size_t)want * size);
  if (bigger == NULL) return GF_ERROR;
  *(void **)table = bigger;
  *cap = want;
  return GF_DONE;
}

static int no_memory(gf_job *job) {
  PyErr_NoMemory();
  return gf_raise(job);
}

int gf_reserve_entries(gf_job *job, int64_t count) {
  int64_t cap[4] = {job->entries_cap, job->entries_cap, job->entries_cap, job->entries_cap};
  if (grow(&job->data, &cap[0], count, sizeof *job->data) || grow(&job->rows, &cap[1], count, sizeof *job->rows) ||
      grow(&job->odd, &cap[2], count, sizeof *job->odd) || grow(&job->objects, &cap[3], count, sizeof *job->objects))
    return no_memory(job);
  job->entries_cap = cap[0];
  memset(job->objects, 0, (size_t)count * sizeof *job->objects);
  return GF_DONE;
}

int gf_reserve_outs(gf_job *job, int64_t count) {
  int64_t cap[3] = {job->outs_cap, job->outs_cap, job->outs_cap};
  if (grow(&job->outs, &cap[0], count, sizeof *job->outs) || grow(&job->out_data, &cap[1], count, sizeof *job->out_data) ||
      grow(&job->out_odd, &cap[2], count, sizeof *job->out_odd))
    return no_memory(job);
  job->outs_cap = cap[0];
  memset(job->outs, 0, (size_t)count * sizeof *job->outs);
  job->outs_len = count;
  return GF_DONE;
}

// Row-major without gaps? Strides of extents 0 and 1 mean nothing.
int gf_is_contiguous(const gf_dl_tensor *t, int strides_in_bytes) {
  if (t->strides == NULL) return 1;
  for (int i = 0; i < t->ndim; i++)
    if (t->shape[i] == 0) return 1;
  int64_t step = strides_in_bytes ? gf_elem_bytes(t->dtype) : 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] != 1 && t->strides[i] != step) return 0;
    step *= t->shape[i];
  }
  return 1;
}

static void put_strides(int64_t *strides, const gf_dl_tensor *t, int in_bytes) {
  int64_t elem = gf_elem_bytes(t->dtype), step = elem;
  for (int i = t->ndim - 1; i >= 0; i--) {
    strides[i] = t->strides == NULL ? step : t->strides[i] * (in_bytes ? 1 : elem);
    if (t->shape[i] > 0 && __builtin_mul_overflow(step, t->shape[i], &step)) step = INT64_MAX;
  }
}

int64_t gf_add_array(gf_job *job, const gf_dl_tensor *t, int strides_in_bytes) {
  if (grow(&job->arrays, &job->arrays_cap, job->arrays_len + 1, sizeof *job->arrays) ||
      grow(&job->dims, &job->dims_cap, job->dims_len + 2 * t->ndim, sizeof *job->dims)) {
    PyErr_NoMemory();
    return -1;
  }
  gf_array *array = &job->arrays[job->arrays_len];
  *array = (gf_array){.dtype = t->dtype, .device = t->device, .ndim = t->ndim, .dims = job->dims_len};
  array->contiguous = gf_is_contiguous(t, strides_in_bytes);
  int64_t *dims = job->dims + job->dims_len;
  if (t->ndim > 0) memcpy(dims, t->shape, (size_t)t->ndim * sizeof *dims);
  put_strides(dims + t->ndim, t, strides_in_bytes);
  job->dims_len += 2 * t->ndim;
  return job->arrays_len++;
}

int gf_hold_managed(gf_job *job, void *managed, int versioned) {
  if (grow(&job->holds, &job->holds_cap, job->holds_len + 1, sizeof *job->holds)) return no_memory(job);
  job->holds[job->holds_len++] = (gf_hold){managed, versioned};
  return GF_DONE;
}

int gf_fail(gf_job *job, const char *code, int64_t key, int64_t batch, const char *got, const char *want) {
  job->error.code = code;
  job->error.key = key;
  job->error.batch = batch;
  snprintf(job->error.got, GF_TEXT, "%s", got);
  snprintf(job->error.want, GF_TEXT, "%s", want);
  return job->status = GF_ERROR;
}

// The codes a hook may return, so that error.code always points to static text.
static const char *static_code(const char *code) {
  static const char *known[] = {"SHAPE", "DTYPE", "DEVICE", "OVERLAP", "OWNER"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(code, known[i]) == 0) return known[i];
  return "INTERNAL";
}

int gf_fail_tuple(gf_job *job, PyObject *refusal, int64_t key, int64_t batch) {
  const char *code, *got, *want;
  if (!PyArg_ParseTuple(refusal, "sss", &code, &got, &want)) return gf_raise(job);
  return gf_fail(job, static_code(code), key, batch, got, want);
}

int gf_raise(gf_job *job) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != NULL && trace != NULL) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  Py_XDECREF((PyObject *)job->exception);
  job->exception = value;
  job->error.code = "PYTHON";
  job->error.key = job->error.batch = -1;
  job->error.got[0] = job->error.want[0] = 0;
  return job->status = GF_ERROR;
}

int gf_take_exception(uint64_t list) {
  if (parked == NULL) return 0;
  PyGILState_STATE gil = PyGILState_Ensure();
  Py_ssize_t last = PyList_GET_SIZE(parked) - 1;
  int rc = PyList_Append((PyObject *)list, PyList_GET_ITEM(parked, last));
  if (rc != 0) PyErr_Clear();
  PyList_SetSlice(parked, last, last + 1, NULL);
  if (last == 0) Py_CLEAR(parked);
  PyGILState_Release(gil);
  return rc == 0;
}

// Hands the exception of a failed job to gf_take_exception.
static void park(gf_job *job) {
  PyObject *exception = job->exception;
  job->exception = NULL;
  if (exception == NULL) return;
  if (job->status == GF_ERROR) {
    if (parked == NULL) parked = PyList_New(0);
    if (parked == NULL || PyList_Append(parked, exception) != 0) PyErr_Clear();
  }
  Py_DECREF(exception);
}

static void release(gf_hold *hold) {
  if (hold->versioned) {
    gf_dl_managed_versioned *m = hold->managed;
    if (m->deleter != NULL) m->deleter(m);
  } else {
    gf_dl_managed *m = hold->managed;
    if (m->deleter != NULL) m->deleter(m);
  }
}

static void free_job(gf_job *job) {
  free(job->data), free(job->rows), free(job->odd), free(job->objects);
  free(job->arrays), free(job->dims), free(job->holds);
  free(job->outs), free(job->out_data), free(job->out_odd);
  free(job);
}

static void end(gf_job *job) {
  for (int64_t i = 0; i < job->holds_len; i++) release(&job->holds[i]);
  for (int64_t i = 0; i < job->entries; i++) Py_XDECREF((PyObject *)job->objects[i]);
  for (int64_t i = 0; i < job->outs_len; i++) Py_XDECREF((PyObject *)job->outs[i]);
  Py_XDECREF((PyObject *)job->names);
  job->names = NULL;
  park(job);
  live--;
  job->holds_len = job->entries = job->outs_len = job->arrays_len = job->dims_len = 0;
  job->keys = job->batches = 0;
  job->kind = job->status = job->quick = job->by_words = job->autograd = 0;
  job->api = NULL;
  if (spare != NULL || job->entries_cap > GF_KEEP_ENTRIES || job->dims_cap > GF_KEEP_ENTRIES)
    free_job(job);
  else
    spare = job;
}

int gf_close(gf_job *job, int publish, int32_t row_dims, const int64_t *row_shape) {
  if (!job->holding) gf_resume(job);
  int rc = publish ? gf_publish(job, row_dims, row_shape) : GF_DONE;
  int32_t gil = job->gil;
  end(job);
  PyGILState_Release((PyGILState_STATE)gil);
  return rc;
}
