// Walks the containers and fills one slot per entry. Containers it does not know at sight are left to Python
// (GF_NORMALISE), which either turns them into known ones or raises the error a user should see.
#include "collect.h"

static int is_dict(PyObject *o) { return PyDict_CheckExact(o) || PyODict_CheckExact(o); }
static int is_row(PyObject *o) { return PyList_CheckExact(o) || PyTuple_CheckExact(o); }
static PyObject *item(PyObject *row, Py_ssize_t i) {
  return PyList_CheckExact(row) ? PyList_GET_ITEM(row, i) : PyTuple_GET_ITEM(row, i);
}
static Py_ssize_t length(PyObject *row) { return PyList_CheckExact(row) ? PyList_GET_SIZE(row) : PyTuple_GET_SIZE(row); }

enum { AHEAD = 4 };  // entries lie anywhere in memory: while one is read, a later one is fetched

static int set_shape(gf_job *job, int64_t keys, int64_t batches) {
  job->keys = keys;
  job->batches = batches;
  int64_t count;
  if (__builtin_mul_overflow(keys, batches, &count)) return job->status = GF_NORMALISE;
  int rc = gf_reserve_entries(job, count);
  if (rc == GF_DONE) job->entries = count;
  return rc;
}

// A list changed length while a hook ran Python code: let Python look at it again.
static int read_row(gf_job *job, int64_t key, PyObject *row) {
  for (int64_t b = 0; b < job->batches; b++) {
    if (b >= length(row)) return job->status = GF_NORMALISE;
    if (b + AHEAD < length(row)) gf_prefetch(item(row, b + AHEAD));
    int rc = gf_read_entry(job, key * job->batches + b, item(row, b));
    if (rc != GF_DONE) return rc;
  }
  return GF_DONE;
}

static int visit_row(gf_job *job, int64_t key, Py_ssize_t keys, PyObject *row) {
  if (!is_row(row)) return job->status = GF_NORMALISE;
  if (key == 0) {
    int rc = set_shape(job, keys, length(row));
    if (rc != GF_DONE) return rc;
  }
  if (key >= job->keys || length(row) != job->batches) return job->status = GF_NORMALISE;
  Py_INCREF(row);  // a hook may run code that drops it
  int rc = read_row(job, key, row);
  Py_DECREF(row);
  return rc;
}

// Are the keys of dict those noted in names? While hooks ran Python code, some may have gone before they were reached, so
// that their entries have no address, or gone and come back, so that they were met twice.
static int has_names(PyObject *dict, PyObject *names) {
  Py_ssize_t pos = 0, k = 0;
  PyObject *key;
  while (k < PyTuple_GET_SIZE(names) && PyDict_Next(dict, &pos, &key, NULL) && key == PyTuple_GET_ITEM(names, k)) k++;
  return k == PyTuple_GET_SIZE(names) && k == PyDict_GET_SIZE(dict);
}

// The keys of an exact dict are noted on the way, without making an iterator.
static int walk_dict(gf_job *job, PyObject *dict) {
  Py_ssize_t pos = 0, keys = PyDict_GET_SIZE(dict);
  PyObject *key, *row;
  int64_t k = 0;
  job->names = PyTuple_New(keys);
  if (job->names == NULL) return gf_raise(job);
  for (; k < keys && PyDict_Next(dict, &pos, &key, &row); k++) {
    PyTuple_SET_ITEM((PyObject *)job->names, k, Py_NewRef(key));
    int rc = visit_row(job, k, keys, row);
    if (rc != GF_DONE) return rc;
  }
  return has_names(dict, job->names) ? GF_DONE : (job->status = GF_NORMALISE);
}

// An error of an iterator: Python meets it again and says what is wrong. KeyboardInterrupt and its like go through.
static int iterated(gf_job *job) {
  if (!PyErr_Occurred()) return GF_DONE;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return gf_raise(job);
  PyErr_Clear();
  return job->status = GF_NORMALISE;
}

// An OrderedDict keeps an order of its own (move_to_end), which only its iterator knows.
static int walk_ordered(gf_job *job, PyObject *dict) {
  job->names = PySequence_Tuple(dict);
  if (job->names == NULL) return iterated(job);
  PyObject *values = PyObject_CallMethod(dict, "values", NULL), *iter = values ? PyObject_GetIter(values) : NULL, *row;
  Py_XDECREF(values);
  if (iter == NULL) return gf_raise(job);
  Py_ssize_t keys = PyTuple_GET_SIZE((PyObject *)job->names);
  int rc = GF_DONE;
  int64_t k = 0;
  for (; rc == GF_DONE && (row = PyIter_Next(iter)) != NULL; k++) {
    rc = visit_row(job, k, keys, row);
    Py_DECREF(row);
  }
  Py_DECREF(iter);
  if (rc == GF_DONE) rc = iterated(job);
  return rc == GF_DONE && k != keys ? (job->status = GF_NORMALISE) : rc;
}

static int read_mapping(gf_job *job, int64_t batch, PyObject *mapping) {
  PyObject *keys = job->names;
  if (!is_dict(mapping) || PyDict_GET_SIZE(mapping) != job->keys) return job->status = GF_NORMALISE;
  for (int64_t k = 0; k < job->keys; k++) {
    PyObject *object = PyDict_GetItemWithError(mapping, PyTuple_GET_ITEM(keys, k));
    if (object == NULL) {
      if (PyErr_Occurred()) return gf_raise(job);
      return job->status = GF_NORMALISE;
    }
    int rc = gf_read_entry(job, k * job->batches + batch, object);
    if (rc != GF_DONE) return rc;
  }
  return GF_DONE;
}

static int visit_mapping(gf_job *job, int64_t batch, PyObject *row) {
  if (batch >= length(row)) return job->status = GF_NORMALISE;
  PyObject *mapping = Py_NewRef(item(row, batch));  // a hook, or a key's __eq__, may run code that drops it
  int rc = read_mapping(job, batch, mapping);
  Py_DECREF(mapping);
  return rc;
}

static int walk_batches(gf_job *job, PyObject *row) {
  if (!is_dict(item(row, 0)) || PyDict_GET_SIZE(item(row, 0)) == 0) return job->status = GF_NORMALISE;
  job->names = PySequence_Tuple(item(row, 0));
  if (job->names == NULL) return iterated(job);
  int rc = set_shape(job, PyTuple_GET_SIZE((PyObject *)job->names), length(row));
  for (int64_t b = 0; rc == GF_DONE && b < job->batches; b++) rc = visit_mapping(job, b, row);
  return rc;
}

// cat: every tensor is a key of its own, with one batch.
static int walk_tensors(gf_job *job, PyObject *row) {
  int rc = set_shape(job, length(row), 1);
  for (int64_t k = 0; rc == GF_DONE && k < job->keys; k++) {
    if (k >= length(row)) return job->status = GF_NORMALISE;
    if (k + AHEAD < length(row)) gf_prefetch(item(row, k + AHEAD));
    rc = gf_read_entry(job, k, item(row, k));
  }
  return rc;
}

int gf_collect(gf_job *job) {
  PyObject *features = job->features;
  if (PyDict_CheckExact(features)) return walk_dict(job, features);
  if (PyODict_CheckExact(features)) return walk_ordered(job, features);
  if (!is_row(features)) return job->status = GF_NORMALISE;
  if (job->flags & GF_FLAG_ONE_KEY) return walk_tensors(job, features);
  if (length(features) == 0) return GF_DONE;
  return walk_batches(job, features);
}
