// The Python objects the collector works with, handed over once by goflat._native.
#include "collect.h"

gf_hooks_t gf_hooks;

static const struct {
  const char *name;
  PyObject **slot;
} slots[] = {
    {"tensor", &gf_hooks.tensor},         {"ndarray", &gf_hooks.ndarray}, {"empty", &gf_hooks.empty},
    {"np_empty", &gf_hooks.np_empty},     {"resolve", &gf_hooks.resolve}, {"refuse_out", &gf_hooks.refuse_out},
    {"attributes", &gf_hooks.attributes}, {"wrap", &gf_hooks.wrap},       {"watchers", &gf_hooks.watchers},
    {"is_grad_enabled", &gf_hooks.is_grad_enabled}, {"forward_ad", &gf_hooks.forward_ad},
    {"current_stream", &gf_hooks.current_stream},
    {"cupy", &gf_hooks.cupy},             {"cupy_attributes", &gf_hooks.cupy_attributes},
    {"cupy_empty", &gf_hooks.cupy_empty}, {"cupy_stream", &gf_hooks.cupy_stream},
};

// Stores every known name of the dict; objects are kept for the life of the process. Returns how many were stored.
int gf_register(uint64_t hooks) {
  int stored = 0;
  PyGILState_STATE gil = PyGILState_Ensure();
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
    PyObject *object = PyDict_GetItemString((PyObject *)hooks, slots[i].name);
    if (object == NULL) continue;
    Py_INCREF(object);
    Py_XSETREF(*slots[i].slot, object);
    stored++;
  }
  PyGILState_Release(gil);
  return stored;
}
