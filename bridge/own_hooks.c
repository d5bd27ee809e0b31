// The Python callables behind the ownership checks, and errors on their way back.
#include "own_hooks.h"

#include "handle.h"
#include "own.h"

gf_own_hooks_t gf_own_hooks;

static const struct {
  const char *name;
  PyObject **slot;
} slots[] = {
    {"judge", &gf_own_hooks.judge}, {"slow", &gf_own_hooks.slow},     {"hold", &gf_own_hooks.hold},
    {"over", &gf_own_hooks.over},   {"import", &gf_own_hooks.import}, {"storage", &gf_own_hooks.storage},
};

static void keep(PyObject *dict) {
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
    PyObject *object = PyDict_GetItemString(dict, slots[i].name);
    if (object != NULL) Py_XSETREF(*slots[i].slot, Py_NewRef(object));
  }
}

static int learn(PyObject *dict) {
  PyObject *sizes = PyDict_GetItemString(dict, "sizes"), *middle = PyDict_GetItemString(dict, "middle");
  return sizes != NULL && middle != NULL && gf_learn_words(dict) && gf_learn_handles(sizes, middle);
}

int gf_learn_ownership(uint64_t probes) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *dict = (PyObject *)(uintptr_t)probes;
  keep(dict);
  gf_own_hooks.quick = learn(dict);
  PyGILState_Release(gil);
  return gf_own_hooks.quick;
}

// Exceptions reach Python through a job's end, so an empty one is opened for it.
void gf_park_error(void) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *nothing = PyTuple_New(0);
  gf_job *job = nothing == NULL ? NULL : gf_open((uint64_t)(uintptr_t)nothing, 0, 0, GF_FLAG_ONE_KEY, 0);
  PyErr_Restore(type, value, trace);
  if (job != NULL) {
    gf_raise(job);
    gf_close(job, 0, 0, NULL);
  }
  PyErr_Clear();
  Py_XDECREF(nothing);
}
