// Makes adopted outputs: an ordinary tensor where one storage holds it, else one over foreign memory.
#include "adopt.h"

#include "adopted.h"
#include "own_hooks.h"

// What is being made.
typedef struct {
  const gf_adoption *ask;
  gf_dl_tensor tensor;  // shape and strides are set in the record
  int64_t elem_bytes, bytes;
  gf_parts parts;
} making;

static int measure(making *m) {
  m->bytes = m->elem_bytes;
  for (int32_t i = 0; i < m->ask->ndim; i++)
    if (m->ask->shape[i] < 0 || __builtin_mul_overflow(m->bytes, m->ask->shape[i], &m->bytes)) m->bytes = 0;
  if (m->bytes > 0 && m->ask->ndim <= GF_MAX_NDIM) return 0;
  PyErr_SetString(PyExc_ValueError, "an adopted output needs at least one byte");
  return -1;
}

static int is_tensor(PyObject *o) {
  return gf_hooks.tensor != NULL && gf_own_hooks.hold != NULL && PyObject_TypeCheck(o, (PyTypeObject *)gf_hooks.tensor);
}

static int describe(making *m) {
  gf_view like;
  PyObject *object = m->ask->like;
  int tensors = is_tensor(object);
  for (int64_t i = 0; i < m->ask->under_len; i++) tensors &= is_tensor(m->ask->under[i]);
  if (!tensors) {
    PyErr_SetString(PyExc_TypeError, "only torch tensors can be adopted");
    return -1;
  }
  if (gf_read_output(NULL, object, &like, 0) != GF_DONE) return -1;
  m->elem_bytes = gf_elem_bytes(like.tensor.dtype);
  m->tensor = (gf_dl_tensor){.data = (void *)(uintptr_t)m->ask->address, .device = like.tensor.device,
                             .dtype = like.tensor.dtype, .ndim = m->ask->ndim};
  return measure(m);
}

// A tensor of like's dtype over the storage of source, made by Python.
static PyObject *ask_over(const making *m, PyObject *source, uint64_t offset) {
  PyObject *shape = gf_shape_tuple(m->ask->ndim, m->ask->shape), *out = NULL;
  if (shape != NULL)
    out = PyObject_CallFunction(gf_own_hooks.over, "OOKO", m->ask->like, source, (unsigned long long)offset, shape);
  Py_XDECREF(shape);
  return out;
}

// ---- inside one storage ----

static int is_inside(const making *m) {
  if (m->parts.len != 1) return 0;
  const gf_part *part = m->parts.items[0];
  uint64_t lo = m->ask->address, hi = lo + (uint64_t)m->bytes;
  return part->lo <= lo && hi <= part->hi && (lo - part->lo) % (uint64_t)m->elem_bytes == 0;
}

// Without Python, if torch would make a tensor of the same kind now. NULL without an exception: ask Python.
static PyObject *cut(const making *m, const gf_part *part) {
  gf_extent like, flat;
  if (part->is_python || gf_handle_extent(gf_tensor_handle(m->ask->like), &like) != 0 ||
      gf_handle_extent(part->holder, &flat) != 0 || like.dtype != flat.dtype || !gf_handle_is_usual(part->holder))
    return NULL;
  int64_t offset = (int64_t)(m->ask->address - part->lo) / m->elem_bytes;
  gf_handle made = gf_handle_cut(part->holder, m->ask->ndim, m->ask->shape, offset);
  PyObject *out = made == NULL ? NULL : gf_handle_wrap(made);
  if (made != NULL) gf_handle_drop(made);
  return out;
}

static PyObject *make_inside(making *m) {
  const gf_part *part = m->parts.items[0];
  PyObject *out = cut(m, part);
  if (out != NULL || PyErr_Occurred()) return out;
  PyObject *source = gf_part_tensor(part);
  if (source != NULL) out = ask_over(m, source, m->ask->address - part->lo);
  Py_XDECREF(source);
  return out;
}

// ---- over several ----

// The dtypes that every torch's DLPack has words for; others go as bytes.
static int is_common(gf_dl_dtype d) {
  enum { INT, UINT, FLOAT, BFLOAT = 4, COMPLEX, BOOL };
  return d.lanes == 1 && (d.code <= FLOAT || (d.code >= BFLOAT && d.code <= BOOL)) && d.bits >= 8;
}

static PyObject *import_versioned(gf_record *record, const gf_dl_exchange *api) {
  void *out = NULL;
  int gone = 0;
  record->gone = &gone;
  int rc = api->object_from_owned(&record->versioned, &out);
  if (!gone) record->gone = NULL;
  if (rc != 0 && !gone) gf_record_end(record);  // torch failed before it took the record over
  return rc == 0 ? out : NULL;
}

static void drop_capsule(PyObject *capsule) {
  gf_dl_managed *managed = PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
  if (managed != NULL) managed->deleter(managed);  // nobody took it
}

static PyObject *import_legacy(gf_record *record) {
  PyObject *capsule = PyCapsule_New(&record->legacy, "dltensor", drop_capsule);
  if (capsule == NULL) {
    gf_record_end(record);
    return NULL;
  }
  PyObject *out = PyObject_CallOneArg(gf_own_hooks.import, capsule);
  Py_DECREF(capsule);
  return out;
}

static const void *storage_of(PyObject *tensor) {
  if (gf_own_hooks.quick) return gf_handle_storage(gf_tensor_handle(tensor));
  PyObject *answer = PyObject_CallOneArg(gf_own_hooks.storage, tensor);
  const void *storage = answer == NULL ? NULL : PyLong_AsVoidPtr(answer);
  Py_XDECREF(answer);
  return storage;
}

// Imports a record and makes it known. The record ends with the tensor, also if something fails after.
static PyObject *import(making *m, gf_record *record) {
  const gf_dl_exchange *api = gf_exchange_of(Py_TYPE((PyObject *)m->ask->like));
  PyObject *out = api != NULL ? import_versioned(record, api) : import_legacy(record);
  const void *storage = out == NULL ? NULL : storage_of(out);
  if (storage != NULL) {
    gf_adopted_enter(record, storage);
    return out;
  }
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch did not take an adopted output");
  Py_XDECREF(out);
  return NULL;
}

// torch has dtypes that its DLPack gives back as others, such as int1 to int7.
static int has_dtype_of(PyObject *like, PyObject *out) {
  PyObject *want = PyObject_GetAttrString(like, "dtype"), *got = PyObject_GetAttrString(out, "dtype");
  int same = want != NULL && want == got;
  Py_XDECREF(want);
  Py_XDECREF(got);
  PyErr_Clear();
  return same;
}

static PyObject *make_foreign(making *m) {
  gf_dl_tensor tensor = m->tensor;
  const int64_t *shape = m->ask->shape;
  if (!is_common(tensor.dtype)) tensor.dtype = (gf_dl_dtype){1, 8, 1}, tensor.ndim = 1, shape = &m->bytes;
  gf_record *record = gf_record_new(&tensor, shape, &m->parts);
  if (record == NULL) return PyErr_NoMemory();
  PyObject *out = import(m, record);
  if (out != NULL && !has_dtype_of(m->ask->like, out)) {
    PyObject *other = out;
    out = ask_over(m, other, 0);
    Py_DECREF(other);
  }
  if (out == NULL) return NULL;
  record->claim_lo = m->ask->lo, record->claim_hi = m->ask->hi;
  record->unclaim = (gf_unclaim)(uintptr_t)m->ask->unclaim;
  return out;
}

void *gf_adopt(const gf_adoption *a, int *foreign) {
  making m = {.ask = a};
  if (describe(&m) != 0 || gf_parts_gather(a->under, a->under_len, a->address, m.bytes, &m.parts) != 0) return NULL;
  int inside = is_inside(&m);
  PyObject *out = inside ? make_inside(&m) : make_foreign(&m);
  gf_parts_release(&m.parts);
  if (out != NULL && inside && a->unclaim != 0) ((gf_unclaim)(uintptr_t)a->unclaim)(a->lo, a->hi);
  if (foreign != NULL) *foreign = !inside;
  return out;
}

// ---- for Python ----

static int read_shape(PyObject *tuple, int64_t *shape) {
  Py_ssize_t ndim = PyTuple_GET_SIZE(tuple);
  for (Py_ssize_t i = 0; i < ndim && i < GF_MAX_NDIM; i++) shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
  return PyErr_Occurred() ? -1 : (int)ndim;
}

static int adopt_into(gf_adoption *a, PyObject *shape, PyObject *under, PyObject *result) {
  int64_t extents[GF_MAX_NDIM];
  int foreign = 0;
  a->ndim = read_shape(shape, extents);
  a->shape = extents;
  PyObject *tuple = PySequence_Tuple(under);  // that nothing changes while Python is asked
  if (tuple == NULL || a->ndim < 0) {
    Py_XDECREF(tuple);
    return -1;
  }
  a->under = (void *const *)((PyTupleObject *)tuple)->ob_item;
  a->under_len = PyTuple_GET_SIZE(tuple);
  PyObject *out = gf_adopt(a, &foreign);
  int rc = out == NULL ? -1 : PyList_Append(result, out);
  Py_XDECREF(out);
  Py_DECREF(tuple);
  return rc == 0 ? foreign : -1;
}

int64_t gf_adopt_into(uint64_t address, uint64_t shape, uint64_t like, uint64_t under, uint64_t lo, uint64_t hi,
                      uint64_t unclaim, uint64_t result) {
  PyGILState_STATE gil = PyGILState_Ensure();
  gf_adoption a = {.address = address, .like = (void *)(uintptr_t)like, .lo = lo, .hi = hi, .unclaim = unclaim};
  int rc = adopt_into(&a, (PyObject *)(uintptr_t)shape, (PyObject *)(uintptr_t)under, (PyObject *)(uintptr_t)result);
  if (rc < 0) gf_park_error();
  PyGILState_Release(gil);
  return rc;
}

// The storage of a tensor and where its memory starts. 0, or -1 with a Python exception.
static int find_storage(PyObject *tensor, const void **storage, uint64_t *data) {
  if (gf_own_hooks.quick) {
    *storage = gf_handle_storage(gf_tensor_handle(tensor));
    *data = *storage == NULL ? 0 : gf_word(*storage, gf_words.data_at);
    return 0;
  }
  PyObject *held = PyObject_CallOneArg(gf_own_hooks.hold, tensor), *keeper;
  unsigned long long identity, lo, bytes;
  int rc = held != NULL && PyArg_ParseTuple(held, "OKKK", &keeper, &identity, &lo, &bytes) ? 0 : -1;
  Py_XDECREF(held);
  if (rc == 0) *storage = (const void *)(uintptr_t)identity, *data = lo;
  return rc;
}

static int64_t list_parts(PyObject *tensor, PyObject *list) {
  gf_parts parts;
  const void *storage;
  uint64_t data;
  if (gf_live_adopted() == 0 || !is_tensor(tensor)) return 0;
  if (find_storage(tensor, &storage, &data) != 0) return -1;
  int found = gf_adopted_parts_of(storage, data, 0, 0, &parts);
  if (found < 0) PyErr_NoMemory();
  if (found <= 0) return found;
  int64_t count = 0;
  for (int64_t i = 0; count >= 0 && i < parts.len; i++) {
    PyObject *part = gf_part_tensor(parts.items[i]);
    count = part != NULL && PyList_Append(list, part) == 0 ? count + 1 : -1;
    Py_XDECREF(part);
  }
  gf_parts_release(&parts);
  return count;
}

int64_t gf_adopted_parts(uint64_t tensor, uint64_t list) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int64_t count = list_parts((PyObject *)(uintptr_t)tensor, (PyObject *)(uintptr_t)list);
  if (count < 0) gf_park_error();
  PyGILState_Release(gil);
  return count;
}
