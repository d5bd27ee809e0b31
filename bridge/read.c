// Reads one array object into a gf_dl_tensor, by the cheapest way its type allows:
//   exact torch.Tensor that is plain   the exchange API, about 45 ns
//   numpy.ndarray                      the buffer protocol, about 80 ns
//   cupy.ndarray                       Python attributes, about 1 us
//   anything else                      the resolve hook looks at it first, then exchange API, attributes, or a capsule
#include "collect.h"

enum { GF_API_SLOTS = 16 };

typedef struct {
  PyTypeObject *type;  // owned, so that the address is not reused by another type
  const gf_dl_exchange *api;
} api_slot;
static api_slot api_slots[GF_API_SLOTS];

// The newest table of our generation, or NULL. A table of a later generation may point to older ones.
static const gf_dl_exchange *speakable(const gf_dl_exchange *api) {
  for (int hop = 0; api != NULL && hop < GF_DL_MAX_HOPS; hop++) {
    if (api->header.version.major == GF_DL_MAJOR) return api;
    if (api->header.version.major < GF_DL_MAJOR) return NULL;
    api = (const gf_dl_exchange *)api->header.prev;
  }
  return NULL;
}

static const gf_dl_exchange *api_attribute(PyTypeObject *type, const char *name) {
  PyObject *value = PyObject_GetAttrString((PyObject *)type, name);
  const void *api = NULL;
  if (value != NULL && PyCapsule_IsValid(value, "dlpack_exchange_api"))
    api = PyCapsule_GetPointer(value, "dlpack_exchange_api");
  else if (value != NULL && PyLong_Check(value))
    api = PyLong_AsVoidPtr(value);
  Py_XDECREF(value);
  PyErr_Clear();
  return speakable(api);
}

// Types without a table are asked again each time: one may be added later by another library.
const gf_dl_exchange *gf_exchange_of(PyTypeObject *type) {
  int free_slot = -1;
  for (int i = 0; i < GF_API_SLOTS; i++) {
    if (api_slots[i].type == type) return api_slots[i].api;
    if (api_slots[i].type == NULL && free_slot < 0) free_slot = i;
  }
  const gf_dl_exchange *api = api_attribute(type, "__dlpack_c_exchange_api__");      // DLPack 1.3: a capsule
  if (api == NULL) api = api_attribute(type, "__c_dlpack_exchange_api__");           // DLPack 1.2: an int
  if (api != NULL && free_slot >= 0) {
    Py_INCREF(type);
    api_slots[free_slot] = (api_slot){type, api};
  }
  return api;
}

static int is_tensor(PyObject *o) {
  return gf_hooks.tensor != NULL && PyObject_TypeCheck(o, (PyTypeObject *)gf_hooks.tensor);
}
static int is_cupy(PyObject *o) { return gf_hooks.cupy != NULL && Py_TYPE(o) == (PyTypeObject *)gf_hooks.cupy; }
static int is_ndarray(PyObject *o) {
  return gf_hooks.ndarray != NULL && PyObject_TypeCheck(o, (PyTypeObject *)gf_hooks.ndarray);
}

// ---- through Python attributes: CuPy, and torch without an exchange table or with a dtype that the table lacks ----

// Stores at most GF_MAX_NDIM of them; arrays of more are left to the framework.
static int copy_dims(PyObject *sequence, int64_t *dims, int *count) {
  PyObject *fast = PySequence_Fast(sequence, "extents");
  if (fast == NULL) return -1;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  for (Py_ssize_t i = 0; i < n && i < GF_MAX_NDIM; i++) dims[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
  Py_DECREF(fast);
  *count = (int)n;
  return PyErr_Occurred() ? -1 : 0;
}

static int read_attributes(PyObject *hook, PyObject *object, gf_view *v) {
  if (hook == NULL) return -1;
  PyObject *tuple = PyObject_CallOneArg(hook, object), *shape, *strides;
  if (tuple == NULL) return -1;
  unsigned long long address;
  int code, bits, lanes, type, index, ndim, nstrides, rc = -1;
  if (PyArg_ParseTuple(tuple, "KOOiiiii", &address, &shape, &strides, &code, &bits, &lanes, &type, &index) &&
      copy_dims(shape, v->dims, &ndim) == 0 && copy_dims(strides, v->dims + GF_MAX_NDIM, &nstrides) == 0) {
    v->tensor = (gf_dl_tensor){.data = (void *)(uintptr_t)address, .device = {type, index}, .ndim = ndim,
                               .dtype = {(uint8_t)code, (uint8_t)bits, (uint16_t)lanes}, .shape = v->dims,
                               .strides = v->dims + GF_MAX_NDIM};
    rc = 0;
  }
  Py_DECREF(tuple);
  return rc;
}

static int read_tensor(PyObject *object, const gf_dl_exchange *api, gf_view *v) {
  v->kind = GF_KIND_TORCH;
  v->strides_in_bytes = 0;
  if (api != NULL && api->borrow_from_object != NULL) {
    if (api->borrow_from_object(object, &v->tensor) == 0) return 0;
    PyErr_Clear();
  }
  return read_attributes(gf_hooks.attributes, object, v);
}

static int read_cupy(PyObject *object, gf_view *v) {
  v->kind = GF_KIND_CUPY;
  v->strides_in_bytes = 1;
  return read_attributes(gf_hooks.cupy_attributes, object, v);
}

// ---- numpy.ndarray ----

// struct-module format of one native scalar -> DLPack dtype; 0 where there is none (bytes, records, objects, swapped).
static int dtype_of_format(const char *format, int64_t bytes, gf_dl_dtype *dtype) {
  enum { INT, UINT, FLOAT, COMPLEX = 5, BOOL };
  if (format == NULL) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') format++;
  int complex = *format == 'Z';
  if (complex) format++;
  if (format[0] == 0 || format[1] != 0 || bytes * 8 > 255) return 0;
  int code = strchr("bhilqn", *format)    ? INT
             : strchr("BHILQN", *format) ? UINT
             : strchr("efdg", *format)   ? FLOAT
             : *format == '?'            ? BOOL
                                         : -1;
  if (code < 0 || (complex && code != FLOAT)) return 0;
  *dtype = (gf_dl_dtype){(uint8_t)(complex ? COMPLEX : code), (uint8_t)(bytes * 8), 1};
  return 1;
}

// GF_FALLBACK where only NumPy itself can copy the elements. The buffer is released at once: the reference that the
// job holds keeps the memory, and NumPy refuses to resize an array that others refer to.
static int read_ndarray(PyObject *object, gf_view *v, int writable) {
  Py_buffer buffer;
  v->kind = GF_KIND_NUMPY;
  v->strides_in_bytes = 1;
  if (PyObject_GetBuffer(object, &buffer, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    PyErr_Clear();
    return GF_FALLBACK;
  }
  gf_dl_dtype dtype;
  int plain = buffer.ndim <= GF_MAX_NDIM && dtype_of_format(buffer.format, buffer.itemsize, &dtype);
  if (plain) {
    v->tensor = (gf_dl_tensor){.data = buffer.buf, .device = {GF_DL_CPU, 0}, .ndim = buffer.ndim, .dtype = dtype,
                               .shape = v->dims, .strides = v->dims + GF_MAX_NDIM};
    memcpy(v->dims, buffer.shape, (size_t)buffer.ndim * sizeof *v->dims);
    memcpy(v->dims + GF_MAX_NDIM, buffer.strides, (size_t)buffer.ndim * sizeof *v->dims);
  }
  PyBuffer_Release(&buffer);
  return plain ? GF_DONE : GF_FALLBACK;
}

// ---- __dlpack__ capsules ----

static PyObject *export_capsule(PyObject *object) {
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  if (method == NULL) return NULL;
  PyObject *none = PyTuple_New(0), *kwargs = Py_BuildValue("{s:(ii)}", "max_version", GF_DL_MAJOR, 3);
  PyObject *capsule = none && kwargs ? PyObject_Call(method, none, kwargs) : NULL;
  if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {  // a producer from before DLPack 1.0
    PyErr_Clear();
    capsule = PyObject_CallNoArgs(method);
  }
  Py_XDECREF(kwargs);
  Py_XDECREF(none);
  Py_DECREF(method);
  return capsule;
}

// A producer's own error: the fall-back meets it again, and says at which key and batch. KeyboardInterrupt and its like
// are nobody's error and go through.
static int decline(gf_job *job) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return gf_raise(job);
  PyErr_Clear();
  return job->status = GF_FALLBACK;
}

// Takes the tensor out of the capsule. Its name alone says which struct is inside; renaming marks it as used.
static int open_capsule(gf_job *job, PyObject *capsule, gf_view *v) {
  int versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
  if (!versioned && !PyCapsule_IsValid(capsule, "dltensor")) return job->status = GF_FALLBACK;
  void *managed = PyCapsule_GetPointer(capsule, versioned ? "dltensor_versioned" : "dltensor");
  if (versioned && ((gf_dl_managed_versioned *)managed)->version.major != GF_DL_MAJOR) return job->status = GF_FALLBACK;
  if (gf_hold_managed(job, managed, versioned) != GF_DONE) return GF_ERROR;
  PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor");
  v->tensor = versioned ? ((gf_dl_managed_versioned *)managed)->tensor : ((gf_dl_managed *)managed)->tensor;
  v->kind = GF_KIND_DLPACK;
  v->strides_in_bytes = 0;
  return GF_DONE;
}

static int read_capsule(gf_job *job, int64_t key, int64_t batch, PyObject *object, gf_view *v) {
  if (!PyObject_HasAttrString(object, "__dlpack__"))
    return gf_fail(job, "DTYPE", key, batch, Py_TYPE(object)->tp_name, "a tensor or array");
  PyObject *capsule = export_capsule(object);
  if (capsule == NULL) return decline(job);
  int rc = open_capsule(job, capsule, v);
  Py_DECREF(capsule);
  if (rc == GF_DONE && v->tensor.device.type != GF_DL_CPU) return job->status = GF_FALLBACK;  // a stream was not agreed on
  return rc;
}

static int read_exchange(gf_job *job, PyObject *object, const gf_dl_exchange *api, gf_view *v) {
  v->kind = GF_KIND_EXCHANGE;
  v->strides_in_bytes = 0;
  if (api->borrow_from_object != NULL) return api->borrow_from_object(object, &v->tensor) == 0 ? GF_DONE : gf_raise(job);
  gf_dl_managed_versioned *managed;
  if (api->owned_from_object(object, &managed) != 0) return gf_raise(job);
  v->tensor = managed->tensor;
  return gf_hold_managed(job, managed, 1);
}

// ---- putting an entry into its slot ----

static int32_t dtype_word(gf_dl_dtype d) { return (int32_t)d.code << 24 | (int32_t)d.bits << 16 | d.lanes; }

// Does v differ from the first entry in its extent along dim only?
static int is_like_first(const gf_job *job, const gf_dl_tensor *t) {
  const gf_array *first = &job->arrays[0];
  if (t->ndim != first->ndim || dtype_word(t->dtype) != dtype_word(first->dtype) ||
      t->device.type != first->device.type || t->device.index != first->device.index)
    return 0;
  const int64_t *shape = job->dims + first->dims;
  for (int i = 0; i < t->ndim; i++)
    if (i != job->dim && t->shape[i] != shape[i]) return 0;
  return 1;
}

// A dimension that the first entry does not have stays negative: every entry is odd then, and Go says why.
static void settle_dim(gf_job *job, int ndim) {
  if (job->dim < 0) job->dim += ndim;
  if (job->dim < 0 || job->dim >= ndim) job->dim = -1;
}

// The hot path of every torch entry but the first: is it contiguous and like the first in all but its rows?
static int put_quick(gf_job *job, int64_t e, PyObject *tensor) {
  gf_quick q;
  if (!job->quick || job->dim < 0) return 0;
  int by_words = gf_impl_read(job, tensor, &q);
  if (!by_words && !gf_quick_read(tensor, &q)) return 0;
  const gf_array *first = &job->arrays[0];
  if (q.dtype != job->quick_dtype || q.device_type != job->quick_device_type || q.device_index != job->quick_device_index ||
      q.ndim != first->ndim || (q.ndim == 1 && q.sizes[0] == 0))
    return 0;
  const int64_t *shape = job->dims + first->dims;
  int64_t step = 1;
  for (int64_t i = q.ndim - 1; i >= 0; i--) {
    if ((i != job->dim && q.sizes[i] != shape[i]) || (q.sizes[i] > 1 && q.strides[i] != step)) return 0;
    step *= q.sizes[i];
  }
  if (!by_words && step != 0 && gf_storage_data(tensor) == 0) return 0;  // freed, if it can be told
  job->data[e] = (uint64_t)(uintptr_t)q.data;
  job->rows[e] = q.sizes[job->dim];
  job->odd[e] = -1;
  return 1;
}

// Reads the first torch entry of a job, and remembers torch's own numbers for it, which put_quick compares with.
static int read_first(gf_job *job, PyObject *tensor, gf_view *v) {
  gf_quick q;
  job->api = gf_exchange_of(Py_TYPE(tensor));
  job->quick = gf_quick_read(tensor, &q);
  if (!job->quick) return read_tensor(tensor, job->api, v);
  job->quick_dtype = q.dtype;
  job->quick_device_type = q.device_type;
  job->quick_device_index = q.device_index;
  v->kind = GF_KIND_TORCH;
  v->strides_in_bytes = 0;
  if (!gf_quick_tensor(&q, &v->tensor)) {
    if (read_tensor(tensor, job->api, v) != 0) return -1;
    gf_quick_note(&q, &v->tensor);
  }
  gf_impl_first(job, tensor, &q, gf_elem_bytes(v->tensor.dtype));
  return 0;
}

// Makes v the entry that all others are compared with.
static int put_first(gf_job *job, gf_view *v) {
  if (v->kind == GF_KIND_TORCH && gf_is_watched()) return job->status = GF_FALLBACK;
  if (gf_add_array(job, &v->tensor, v->strides_in_bytes) < 0) return gf_raise(job);
  job->kind = v->kind;
  settle_dim(job, v->tensor.ndim);
  return GF_DONE;
}

// Do entry e and the first come from one library? Types tell, where the kind alone does not.
static int is_same_kind(const gf_job *job, int64_t e, const gf_view *v) {
  if (v->kind != job->kind) return 0;
  return v->kind < GF_KIND_EXCHANGE || Py_TYPE((PyObject *)job->objects[e]) == Py_TYPE((PyObject *)job->objects[0]);
}

// A plan moves nothing, so it may be made for tensors whose memory was freed.
static int is_freed(const gf_job *job, PyObject *object, const gf_view *v) {
  return v->kind == GF_KIND_TORCH && !(job->flags & GF_FLAG_LAYOUT) && !gf_has_memory(object, &v->tensor);
}

static int put(gf_job *job, int64_t e, gf_view *v) {
  gf_dl_tensor *t = &v->tensor;
  if (t->ndim < 0 || t->ndim > GF_MAX_NDIM) return job->status = GF_FALLBACK;
  if (is_freed(job, job->objects[e], v))
    return gf_fail(job, "DEVICE", e / job->batches, e % job->batches, GF_FREED, GF_WANT_MEMORY);
  int first = job->arrays_len == 0;
  if (first && put_first(job, v) != GF_DONE) return job->status;
  if (!is_same_kind(job, e, v)) return job->status = GF_FALLBACK;  // which says what does not mix
  job->data[e] = (uint64_t)(uintptr_t)t->data + t->byte_offset;
  int plain = job->dim >= 0 && t->shape != NULL && is_like_first(job, t) && gf_is_contiguous(t, v->strides_in_bytes) &&
              !(t->ndim == 1 && t->shape[0] == 0);
  job->odd[e] = -1;
  job->rows[e] = plain ? t->shape[job->dim] : 0;
  if (plain) return GF_DONE;
  int64_t odd = first ? 0 : gf_add_array(job, t, v->strides_in_bytes);
  if (odd < 0) return gf_raise(job);
  job->odd[e] = (int32_t)odd;
  return GF_DONE;
}

// Asks the resolve hook what to read instead of object: a new reference, or NULL with the job's status set.
static PyObject *resolve(gf_job *job, int64_t key, int64_t batch, PyObject *object) {
  if (gf_hooks.resolve == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "goflat's native module was used before goflat registered its hooks");
    gf_raise(job);
    return NULL;
  }
  PyObject *answer = PyObject_CallOneArg(gf_hooks.resolve, object);
  if (answer == NULL)
    gf_raise(job);
  else if (PyTuple_CheckExact(answer))
    gf_fail_tuple(job, answer, key, batch);
  else if (PyLong_CheckExact(answer))
    job->status = (int32_t)PyLong_AsLong(answer);
  else
    return answer;
  Py_XDECREF(answer);
  return NULL;
}

static int read_resolved(gf_job *job, int64_t e, PyObject *object, gf_view *v) {
  const gf_dl_exchange *api = gf_exchange_of(Py_TYPE(object));
  if (job->arrays_len == 0) job->api = api;
  if (is_tensor(object)) {
    if (Py_TYPE(object) == (PyTypeObject *)gf_hooks.tensor) gf_remember_plain(object);
    return read_tensor(object, api, v) == 0 ? GF_DONE : gf_raise(job);
  }
  if (is_ndarray(object)) return read_ndarray(object, v, 0);
  if (is_cupy(object)) return read_cupy(object, v) == 0 ? GF_DONE : gf_raise(job);
  if (api != NULL) return read_exchange(job, object, api, v);
  return read_capsule(job, e / job->batches, e % job->batches, object, v);
}

// Puts what the hook gives into the place of object, which the job owns.
static int read_unknown(gf_job *job, int64_t e, PyObject *object, gf_view *v) {
  PyObject *answer = resolve(job, e / job->batches, e % job->batches, object);
  if (answer == NULL) return job->status;
  job->objects[e] = answer;
  Py_DECREF(object);
  return read_resolved(job, e, answer, v);
}

// The job owns object from here on: all that looks at it may run code that drops it from the containers.
int gf_read_entry(gf_job *job, int64_t e, PyObject *object) {
  gf_view view;
  int rc = GF_DONE;
  PyTypeObject *type = Py_TYPE(object);
  job->objects[e] = Py_NewRef(object);
  if (type == (PyTypeObject *)gf_hooks.tensor && gf_is_plain(job, object)) {
    if (put_quick(job, e, object)) return GF_DONE;
    int read = job->arrays_len == 0 ? read_first(job, object, &view) : read_tensor(object, gf_exchange_of(type), &view);
    if (read != 0) rc = gf_raise(job);
  } else if (type == (PyTypeObject *)gf_hooks.ndarray) {
    rc = read_ndarray(object, &view, 0);
  } else if (is_cupy(object)) {
    rc = read_cupy(object, &view) == 0 ? GF_DONE : gf_raise(job);
  } else {
    rc = read_unknown(job, e, object, &view);
  }
  if (rc != GF_DONE) return job->status = rc;
  return put(job, e, &view);
}

int gf_read_output(gf_job *job, PyObject *object, gf_view *view, int writable) {
  int rc;
  if (is_tensor(object))
    rc = read_tensor(object, gf_exchange_of(Py_TYPE(object)), view) == 0 ? GF_DONE : GF_ERROR;
  else if (is_ndarray(object))
    rc = read_ndarray(object, view, writable);
  else if (is_cupy(object))
    rc = read_cupy(object, view) == 0 ? GF_DONE : GF_ERROR;
  else {
    const gf_dl_exchange *api = gf_exchange_of(Py_TYPE(object));
    rc = api == NULL ? GF_FALLBACK : read_exchange(job, object, api, view);
  }
  return rc == GF_DONE && view->tensor.ndim > GF_MAX_NDIM ? GF_FALLBACK : rc;
}

// From here on the job's dtype in torch's own numbers is that of its outputs.
int gf_read_like(gf_job *job) {
  gf_view view;
  gf_quick q;
  PyObject *like = job->like;
  if (job->kind != GF_KIND_TORCH) return GF_FALLBACK;
  if (read_tensor(like, gf_exchange_of(Py_TYPE(like)), &view) != 0) return gf_raise(job);
  job->like_dtype = view.tensor.dtype;
  if (job->quick && gf_quick_read(like, &q)) job->quick_dtype = q.dtype;
  else job->quick = 0;
  return GF_DONE;
}

static int ask_stream(gf_job *job, PyObject *hook, int32_t device, uint64_t *stream) {
  if (hook == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "this framework does not tell its current CUDA stream");
    return gf_raise(job);
  }
  PyObject *answer = PyObject_CallFunction(hook, "i", device);
  if (answer != NULL) *stream = PyLong_AsUnsignedLongLong(answer);
  Py_XDECREF(answer);
  return answer == NULL || PyErr_Occurred() ? gf_raise(job) : GF_DONE;
}

int gf_current_stream(gf_job *job, int32_t device, uint64_t *stream) {
  if (job->kind == GF_KIND_CUPY) return ask_stream(job, gf_hooks.cupy_stream, device, stream);
  if (job->api == NULL || job->api->current_stream == NULL) return ask_stream(job, gf_hooks.current_stream, device, stream);
  void *raw = NULL;
  if (job->api->current_stream(GF_DL_CUDA, device, &raw) != 0) return gf_raise(job);
  *stream = (uint64_t)(uintptr_t)raw;
  return GF_DONE;
}
