// Where results live: outputs made by the caller's own allocator (torch.empty, numpy.empty, the exchange API), outputs
// the caller gave, and the hand-over to the result list.
//
// torch outputs come from torch.empty and not from the exchange API's allocator: the latter returns a tensor over
// foreign storage, on which record_stream() silently does nothing and resize_() fails.
#include "collect.h"

// Strings interned once.
static PyObject *name_dtype, *name_device, *name_layout, *name_columns, *names_dtype_device;

static int intern_names(void) {
  if (names_dtype_device != NULL) return 0;
  name_dtype = PyUnicode_InternFromString("dtype");
  name_device = PyUnicode_InternFromString("device");
  name_layout = PyUnicode_InternFromString("_layout");
  name_columns = PyUnicode_InternFromString("_columns");
  if (name_dtype && name_device && name_layout && name_columns) names_dtype_device = PyTuple_Pack(2, name_dtype, name_device);
  return names_dtype_device == NULL ? -1 : 0;
}

PyObject *gf_shape_tuple(int32_t ndim, const int64_t *shape) {
  PyObject *tuple = PyTuple_New(ndim);
  for (int i = 0; tuple != NULL && i < ndim; i++) {
    PyObject *extent = PyLong_FromLongLong(shape[i]);
    if (extent == NULL) Py_CLEAR(tuple);
    else PyTuple_SET_ITEM(tuple, i, extent);
  }
  return tuple;
}

static PyObject *attribute(gf_job *job, int64_t batch, PyObject *name) {
  return PyObject_GetAttr((PyObject *)job->objects[batch], name);
}

static PyObject *empty_torch(gf_job *job, int64_t batch, PyObject *shape) {
  PyObject *dtype = job->like != NULL ? PyObject_GetAttr(job->like, name_dtype) : attribute(job, batch, name_dtype), *device = dtype ? attribute(job, batch, name_device) : NULL, *out = NULL;
  if (device != NULL) {
    PyObject *args[] = {shape, dtype, device};
    out = PyObject_Vectorcall(gf_hooks.empty, args, 1, names_dtype_device);
  }
  Py_XDECREF(dtype);
  Py_XDECREF(device);
  return out;
}

static PyObject *make_torch(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  gf_quick like;
  PyObject *out = NULL;
  if (gf_quick_read((PyObject *)job->objects[batch], &like) && (job->like == NULL || job->quick)) {
    if (job->like != NULL) like.dtype = job->quick_dtype;
    out = gf_quick_make(&like, ndim, shape);
  }
  if (out != NULL) return out;
  PyErr_Clear();
  PyObject *tuple = gf_shape_tuple(ndim, shape);
  if (tuple == NULL) return NULL;
  out = empty_torch(job, batch, tuple);
  Py_DECREF(tuple);
  return out;
}

// "<kind><bytes>" as NumPy spells it, or NULL for a dtype that NumPy does not have.
static PyObject *numpy_dtype(gf_dl_dtype d) {
  static const char kinds[] = {'i', 'u', 'f', 0, 0, 'c', 'b'};
  if (d.lanes != 1 || d.code >= sizeof kinds || kinds[d.code] == 0 || d.bits % 8 != 0) return NULL;
  return PyUnicode_FromFormat("%c%d", kinds[d.code], d.bits / 8);
}

static PyObject *make_numpy(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  if (gf_hooks.np_empty == NULL) return NULL;
  PyObject *dtype = job->kind == GF_KIND_NUMPY ? attribute(job, batch, name_dtype) : numpy_dtype(job->arrays[0].dtype);
  PyObject *tuple = dtype == NULL ? NULL : gf_shape_tuple(ndim, shape), *out = NULL;
  if (tuple != NULL) {
    PyObject *args[] = {tuple, dtype};
    out = PyObject_Vectorcall(gf_hooks.np_empty, args, 2, NULL);
  }
  Py_XDECREF(tuple);
  Py_XDECREF(dtype);
  return out;
}

static PyObject *make_cupy(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  PyObject *tuple = gf_shape_tuple(ndim, shape);
  if (tuple == NULL) return NULL;
  PyObject *out = PyObject_CallFunctionObjArgs(gf_hooks.cupy_empty, (PyObject *)job->objects[batch], tuple, NULL);
  Py_DECREF(tuple);
  return out;
}

static void set_error(void *context, const char *kind, const char *message) {
  (void)context;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_Format(strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, "%s", message);
  PyGILState_Release(gil);
}

static PyObject *make_exchange(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  int32_t odd = job->odd[batch] < 0 ? 0 : job->odd[batch];
  gf_dl_tensor prototype = {.device = job->arrays[odd].device, .ndim = ndim, .dtype = job->arrays[0].dtype, .shape = (int64_t *)shape};
  gf_dl_managed_versioned *managed = NULL;
  void *out = NULL;
  if (job->api->allocate(&prototype, &managed, NULL, set_error) != 0) return NULL;
  return job->api->object_from_owned(managed, &out) == 0 ? out : NULL;
}

static PyObject *make(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  if (job->kind == GF_KIND_EXCHANGE) return make_exchange(job, batch, ndim, shape);
  if (job->kind == GF_KIND_CUPY) return make_cupy(job, batch, ndim, shape);
  return job->kind == GF_KIND_TORCH ? make_torch(job, batch, ndim, shape) : make_numpy(job, batch, ndim, shape);
}

// A mode that fakes allocations (FakeTensorMode and its like) betrays itself by the type of what it returns.
static int is_real(const gf_job *job, PyObject *out) {
  return job->kind != GF_KIND_TORCH || Py_TYPE(out) == (PyTypeObject *)gf_hooks.tensor;
}

static int find_output(gf_job *job, int64_t batch, PyObject *out) {
  gf_quick q;
  job->out_odd[batch] = -1;
  if (job->kind == GF_KIND_TORCH && gf_quick_read(out, &q)) {
    job->out_data[batch] = (uint64_t)(uintptr_t)q.data;
    return GF_DONE;
  }
  gf_view view;
  int rc = gf_read_output(job, out, &view, 1);
  if (rc == GF_FALLBACK) return job->status = rc;
  if (rc != GF_DONE) return job->status == GF_ERROR ? GF_ERROR : gf_raise(job);
  job->out_data[batch] = (uint64_t)(uintptr_t)view.tensor.data + view.tensor.byte_offset;
  return GF_DONE;
}

static int make_output(gf_job *job, int64_t batch, int32_t ndim, const int64_t *shape) {
  PyObject *out = make(job, batch, ndim, shape);
  if (out == NULL) return PyErr_Occurred() ? gf_raise(job) : (job->status = GF_FALLBACK);
  job->outs[batch] = out;
  return is_real(job, out) ? find_output(job, batch, out) : (job->status = GF_FALLBACK);
}

// shape is that of every output but for its extent along dim: rows[b], or -1 for an output of shape (0,).
int gf_make_outputs(gf_job *job, int32_t ndim, int64_t *shape, int32_t dim, int64_t batches, const int64_t *rows) {
  static const int64_t nothing[] = {0};
  if (intern_names() != 0) return gf_raise(job);
  int rc = gf_reserve_outs(job, batches);
  for (int64_t b = 0; rc == GF_DONE && b < batches; b++) {
    shape[dim] = rows[b];
    rc = rows[b] < 0 ? make_output(job, b, 1, nothing) : make_output(job, b, ndim, shape);
  }
  return rc;
}

// ---- out= ----

// Asks the refuse_out hook: GF_DONE, or how the job ends. True means that all like this one are fine.
static int refuse(gf_job *job, int64_t batch, PyObject *out) {
  PyObject *answer = gf_hooks.refuse_out == NULL ? Py_NewRef(Py_None) : PyObject_CallOneArg(gf_hooks.refuse_out, out);
  if (answer == NULL) return gf_raise(job);
  int rc = GF_DONE;
  if (PyTuple_CheckExact(answer))
    rc = gf_fail_tuple(job, answer, -1, job->flags & GF_FLAG_PACKED ? -1 : batch);
  else if (answer == Py_True)
    gf_remember_writable(out);
  else if (answer != Py_None)
    rc = job->status = (int32_t)PyLong_AsLong(answer);
  Py_DECREF(answer);
  return rc;
}

static int is_writable(gf_job *job, PyObject *out) {
  PyTypeObject *type = Py_TYPE(out);
  return type == (PyTypeObject *)gf_hooks.ndarray || (type == (PyTypeObject *)gf_hooks.tensor && gf_is_writable(job, out));
}

static int take_output(gf_job *job, int64_t batch, PyObject *out) {
  int rc = is_writable(job, out) ? GF_DONE : refuse(job, batch, out);
  if (rc != GF_DONE) return rc;
  gf_view view;
  job->outs[batch] = Py_NewRef(out);
  int is_torch = gf_hooks.tensor != NULL && PyObject_TypeCheck(out, (PyTypeObject *)gf_hooks.tensor);
  uint64_t before = is_torch ? gf_storage_data(out) : 0;
  rc = gf_read_output(job, out, &view, 1);
  if (rc == GF_FALLBACK) return job->status = rc;
  if (rc != GF_DONE) return job->status == GF_ERROR ? GF_ERROR : gf_raise(job);
  if (view.kind != job->kind) return job->status = GF_FALLBACK;  // which says what does not mix
  if (is_torch && !gf_has_memory(out, &view.tensor))
    return gf_fail(job, "DEVICE", -1, job->flags & GF_FLAG_PACKED ? -1 : batch, GF_FREED, GF_WANT_MEMORY);
  // A lazy clone has memory of its own from now on: what was read of entries in its storage is where that was before.
  if (is_torch && gf_storage_data(out) != before) return job->status = GF_FALLBACK;
  int64_t odd = gf_add_array(job, &view.tensor, view.strides_in_bytes);
  if (odd < 0) return gf_raise(job);
  job->out_data[batch] = (uint64_t)(uintptr_t)view.tensor.data + view.tensor.byte_offset;
  job->out_odd[batch] = (int32_t)odd;
  return GF_DONE;
}

int gf_take_outputs(gf_job *job, uint64_t outs) {
  PyObject *list = (PyObject *)outs;
  Py_ssize_t count = PyList_GET_SIZE(list);
  int rc = gf_reserve_outs(job, count);
  for (Py_ssize_t b = 0; rc == GF_DONE && b < count; b++) {
    if (b >= PyList_GET_SIZE(list)) return job->status = GF_NORMALISE;
    rc = take_output(job, b, PyList_GET_ITEM(list, b));
  }
  return rc;
}

// ---- hand-over ----

static PyObject *finished(gf_job *job, int64_t batch) {
  PyObject *out = job->outs[batch];
  if (job->kind != GF_KIND_DLPACK || gf_hooks.wrap == NULL) return Py_NewRef(out);
  return PyObject_CallFunctionObjArgs(gf_hooks.wrap, (PyObject *)job->objects[0], out, NULL);
}

// ---- the layout of the result, in the cheapest form: goflat._layout.from_native builds a Layout of it when asked ----

static int all_on_one_device(const gf_job *job) { return job->arrays_len == 1; }

// dtype and device of the last torch result: torch has one object per dtype, and makes a new one per question for devices.
static struct {
  int32_t dtype, device_type, device_index;
  PyObject *dtype_object, *device_object;
} last;

static int is_last(const gf_job *job) {
  return last.device_object != NULL && job->quick && job->quick_dtype == last.dtype &&
         job->quick_device_type == last.device_type && job->quick_device_index == last.device_index;
}

// An attribute of an output, or of an entry where there are no outputs, that arrays of other libraries need not have:
// None then.
static PyObject *attribute_of(gf_job *job, int64_t batch, PyObject *name) {
  PyObject *value = PyObject_GetAttr(job->outs_len > 0 ? job->outs[batch] : job->objects[batch], name);
  if (value != NULL || job->kind != GF_KIND_EXCHANGE || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
  PyErr_Clear();
  return Py_NewRef(Py_None);
}

static PyObject *dtype_of(gf_job *job) {
  return is_last(job) ? Py_NewRef(last.dtype_object) : attribute_of(job, 0, name_dtype);
}

static PyObject *device_of(gf_job *job) {
  return is_last(job) ? Py_NewRef(last.device_object) : attribute_of(job, 0, name_device);
}

static void remember(gf_job *job) {
  if (!job->quick || is_last(job)) return;
  PyObject *dtype = dtype_of(job), *device = device_of(job);
  if (dtype == NULL || device == NULL) {
    PyErr_Clear();
    Py_XDECREF(dtype), Py_XDECREF(device);
    return;
  }
  last.dtype = job->quick_dtype, last.device_type = job->quick_device_type, last.device_index = job->quick_device_index;
  Py_XSETREF(last.dtype_object, dtype);
  Py_XSETREF(last.device_object, device);
}

// One device for all batches, a tuple of one per batch, or None where arrays have no such attribute.
static PyObject *devices_of(gf_job *job) {
  if (job->kind == GF_KIND_NUMPY || job->kind == GF_KIND_DLPACK) return Py_NewRef(Py_None);
  if (all_on_one_device(job) || job->flags & GF_FLAG_PACKED) return device_of(job);
  PyObject *devices = PyTuple_New(job->batches);
  for (int64_t b = 0; devices != NULL && b < job->batches; b++) {
    PyObject *device = attribute_of(job, b, name_device);
    if (device == NULL) Py_CLEAR(devices);
    else PyTuple_SET_ITEM(devices, b, device);
  }
  return devices;
}

// (keys, row counts as native 64-bit integers, key-major, dim, row shape, dtype, devices)
static PyObject *layout_of(gf_job *job, int32_t row_dims, const int64_t *row_shape) {
  PyObject *parts[] = {
      Py_NewRef(job->names == NULL ? Py_None : (PyObject *)job->names),
      PyBytes_FromStringAndSize((const char *)job->rows, job->entries * (Py_ssize_t)sizeof *job->rows),
      PyLong_FromLongLong(job->dim),
      gf_shape_tuple(row_dims, row_shape),
      dtype_of(job),
      devices_of(job),
  };
  enum { COUNT = sizeof parts / sizeof *parts };
  PyObject *layout = PyTuple_New(COUNT);
  for (int i = 0; i < COUNT; i++) {
    if (parts[i] == NULL) Py_CLEAR(layout);
    if (layout != NULL) PyTuple_SET_ITEM(layout, i, parts[i]);
    else Py_XDECREF(parts[i]);
  }
  return layout;
}

static int set_layout(gf_job *job, int32_t row_dims, const int64_t *row_shape) {
  PyObject *result = job->result;
  if (PyList_CheckExact(result)) return 0;
  remember(job);
  PyObject *layout = layout_of(job, row_dims, row_shape);
  int rc = layout == NULL ? -1 : PyObject_SetAttr(result, name_layout, layout);
  Py_XDECREF(layout);
  return rc;
}

static PyObject *column(const gf_job *job, int64_t batch) {
  PyObject *entries = PyTuple_New(job->keys);
  for (int64_t k = 0; entries != NULL && k < job->keys; k++)
    PyTuple_SET_ITEM(entries, k, Py_NewRef((PyObject *)job->objects[k * job->batches + batch]));
  return entries;
}

static int set_columns(gf_job *job) {
  PyObject *columns = PyTuple_New(job->batches);
  for (int64_t b = 0; columns != NULL && b < job->batches; b++) {
    PyObject *entries = column(job, b);
    if (entries == NULL) Py_CLEAR(columns);
    else PyTuple_SET_ITEM(columns, b, entries);
  }
  int rc = columns == NULL ? -1 : PyObject_SetAttr(job->result, name_columns, columns);
  Py_XDECREF(columns);
  return rc;
}

static int append_outputs(gf_job *job) {
  if (job->flags & GF_FLAG_PACKED && gf_append_parts(job)) return GF_DONE;
  for (int64_t b = 0; b < job->outs_len; b++) {
    PyObject *out = finished(job, b);
    int rc = out == NULL ? -1 : PyList_Append((PyObject *)job->result, out);
    Py_XDECREF(out);
    if (rc != 0) return gf_raise(job);
  }
  return GF_DONE;
}

int gf_publish(gf_job *job, int32_t row_dims, const int64_t *row_shape) {
  int recording = job->autograd == GF_AUTOGRAD_RECORDING;
  if (intern_names() != 0 || set_layout(job, row_dims, row_shape) != 0) return gf_raise(job);
  if (recording && set_columns(job) != 0) return gf_raise(job);
  if (append_outputs(job) != GF_DONE) return GF_ERROR;
  return recording ? GF_RECORD : GF_DONE;
}
