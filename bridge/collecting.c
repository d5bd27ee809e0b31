#include "collecting.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static int (*gpu_ready)(int device);
static int64_t (*gpu_reopen)(int device);
static int (*gpu_go_on)(int device, int64_t id, int64_t next);

// Devices that no int holds are those that gpu does not know.
static int device_of(long long number) { return number == (int)number ? (int)number : -1; }

// numbers reads exactly so many arguments, or sets an exception and returns 0.
static int numbers(PyObject *const *args, Py_ssize_t got, long long *to, Py_ssize_t want) {
  if (got != want) {
    PyErr_Format(PyExc_TypeError, "got %zd arguments, want %zd", got, want);
    return 0;
  }
  for (Py_ssize_t i = 0; i < want; i++) to[i] = PyLong_AsLongLong(args[i]);
  return PyErr_Occurred() == NULL;
}

static PyObject *ready(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  long long device;
  return numbers(args, count, &device, 1) ? PyBool_FromLong(gpu_ready(device_of(device))) : NULL;
}

static PyObject *reopen(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  long long device;
  return numbers(args, count, &device, 1) ? PyLong_FromLongLong(gpu_reopen(device_of(device))) : NULL;
}

static PyObject *go_on(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  long long n[3];
  return numbers(args, count, n, 3) ? PyBool_FromLong(gpu_go_on(device_of(n[0]), n[1], n[2])) : NULL;
}

static PyMethodDef switches[] = {
    {"ready", (PyCFunction)(void (*)(void))ready, METH_FASTCALL, NULL},
    {"reopen", (PyCFunction)(void (*)(void))reopen, METH_FASTCALL, NULL},
    {"go_on", (PyCFunction)(void (*)(void))go_on, METH_FASTCALL, NULL},
};

static int append(PyObject *list, PyMethodDef *method) {
  PyObject *function = PyCFunction_New(method, NULL);
  int done = function != NULL && PyList_Append(list, function) == 0;
  Py_XDECREF(function);
  return done;
}

int gf_collect_switches(uint64_t list, uintptr_t ready_at, uintptr_t reopen_at, uintptr_t go_on_at) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int count = sizeof switches / sizeof *switches, done = 1;
  gpu_ready = (int (*)(int))ready_at;
  gpu_reopen = (int64_t(*)(int))reopen_at;
  gpu_go_on = (int (*)(int, int64_t, int64_t))go_on_at;
  for (int i = 0; i < count && done; i++) done = append((PyObject *)(uintptr_t)list, &switches[i]);
  if (!done) PyErr_Clear();
  PyGILState_Release(gil);
  return done ? count : 0;
}
