// The rows of a gradient that belong to each entry: tensors of their own over the memory of the whole, which cost 0.15 µs
// each. torch.cat's backward takes 1 µs for a view, and a split called from Python 0.5.
#include "gradient.h"

#include "collect.h"

// Autograd records nothing here, so a gradient with more to it than its memory, or one that a mode wants to see, is
// left to torch.
static int is_plain(PyObject *gradient) {
  gf_job job = {.flags = GF_FLAG_NO_GRAD};
  if (gf_hooks.tensor == NULL || Py_TYPE(gradient) != (PyTypeObject *)gf_hooks.tensor) return 0;
  return gf_is_plain(&job, gradient) && !gf_is_watched();
}

static PyObject *cut_all(PyObject *gradient, const gf_quick *q, PyObject *rows, int64_t dim) {
  Py_ssize_t count = PyList_GET_SIZE(rows);
  PyObject *parts = PyTuple_New(count);
  int64_t start = 0;
  for (Py_ssize_t i = 0; parts != NULL && i < count; i++) {
    int64_t n = PyLong_AsLongLong(PyList_GET_ITEM(rows, i));
    int fits = n >= 0 && n <= q->sizes[dim] - start;
    PyObject *part = fits ? gf_quick_cut(gradient, q, dim, start, n) : NULL;
    if (part == NULL) Py_CLEAR(parts);
    else PyTuple_SET_ITEM(parts, i, part);
    start += n;
  }
  return parts;
}

static PyObject *cut(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  gf_quick q;
  PyObject *parts = NULL;
  if (count == 3 && PyList_CheckExact(args[1]) && is_plain(args[0]) && gf_quick_read(args[0], &q)) {
    int64_t dim = PyLong_AsLongLong(args[2]);
    if (dim >= 0 && dim < q.ndim) parts = cut_all(args[0], &q, args[1], dim);
  }
  if (parts != NULL) return parts;
  PyErr_Clear();
  Py_RETURN_NONE;
}

static PyMethodDef cutter = {"cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, NULL};

int gf_gradient_cutter(uint64_t list) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *function = PyCFunction_New(&cutter, NULL);
  int done = function != NULL && PyList_Append((PyObject *)(uintptr_t)list, function) == 0;
  Py_XDECREF(function);
  if (!done) PyErr_Clear();
  PyGILState_Release(gil);
  return done;
}
