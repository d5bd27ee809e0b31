// Walks the containers and fills one slot per entry. Containers it does not know at sight are left to Python
// (GF_NORMALISE), which either turns them into known ones or raises the error a user should see.
#include "collect.h"

static int is_dict(PyObject *o) { return PyDict_CheckExact(o) || PyODict_CheckExact(o); }
static int is_row(PyObject *o) { return PyList_CheckExact(o) || PyTuple_CheckExact(o); }
static PyObject *item(PyObject *row, Py_ssize_t i) {
  return PyList_CheckExact(row) ? PyList_GET_ITEM(row, i) : PyTuple_GET_ITEM(row, i);
}
static Py_ssize_t length(PyObject *row) { return PyList_CheckExact(row) ? PyList_GET_SIZE(row) : PyTuple_GET_SIZE(row); }

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

static int walk_dict(gf_job *job, PyObject *dict) {
  Py_ssize_t pos = 0, keys = PyDict_GET_SIZE(dict);
  PyObject *row;
  for (int64_t k = 0; PyDict_Next(dict, &pos, NULL, &row); k++) {
    int rc = visit_row(job, k, keys, row);
    if (rc != GF_DONE) return rc;
  }
  return GF_DONE;
}

// An OrderedDict keeps an order of its own (move_to_end), which only its iterator knows.
static int walk_ordered(gf_job *job, PyObject *dict) {
  PyObject *values = PyObject_CallMethod(dict, "values", NULL), *iter = values ? PyObject_GetIter(values) : NULL, *row;
  Py_XDECREF(values);
  if (iter == NULL) return gf_raise(job);
  int rc = GF_DONE;
  for (int64_t k = 0; rc == GF_DONE && (row = PyIter_Next(iter)) != NULL; k++) {
    rc = visit_row(job, k, PyDict_GET_SIZE(dict), row);
    Py_DECREF(row);
  }
  Py_DECREF(iter);
  if (rc == GF_DONE && PyErr_Occurred()) return gf_raise(job);
  return rc;
}

static int read_mapping(gf_job *job, int64_t batch, PyObject *keys, PyObject *mapping) {
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

static int walk_batches(gf_job *job, PyObject *row) {
  if (!is_dict(item(row, 0)) || PyDict_GET_SIZE(item(row, 0)) == 0) return job->status = GF_NORMALISE;
  PyObject *keys = PySequence_Tuple(item(row, 0));
  if (keys == NULL) return gf_raise(job);
  int rc = set_shape(job, PyTuple_GET_SIZE(keys), length(row));
  for (int64_t b = 0; rc == GF_DONE && b < job->batches; b++)
    rc = b < length(row) ? read_mapping(job, b, keys, item(row, b)) : (job->status = GF_NORMALISE);
  Py_DECREF(keys);
  return rc;
}

// cat: every tensor is a key of its own, with one batch.
static int walk_tensors(gf_job *job, PyObject *row) {
  int rc = set_shape(job, length(row), 1);
  for (int64_t k = 0; rc == GF_DONE && k < job->keys; k++)
    rc = k < length(row) ? gf_read_entry(job, k, item(row, k)) : (job->status = GF_NORMALISE);
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
