// An array library for tests: strided arrays over memory on the CPU, on the fake driver's devices, or nowhere.
//
// Array is a view of memory that `keep` owns. It speaks no protocol by itself. Python subclasses do, with what this
// module makes: exchange() is a DLPack exchange table for __dlpack_c_exchange_api__ (its capsule) or
// __c_dlpack_exchange_api__ (its address), and Array.export() is a capsule for __dlpack__, good or bad.
//
// Each tensor that changes hands is recorded, and never freed, so that exports() can tell how often its deleter ran.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <string.h>

#include "dlpack_abi.h"

enum { MAX_NDIM = 8, MAX_EXPORTS = 1 << 16, MAX_DEVICES = 8 };

typedef struct {
  PyObject_HEAD
  gf_dl_tensor tensor;
  int64_t shape[MAX_NDIM], strides[MAX_NDIM];
  PyObject *keep;
} array;

static PyTypeObject array_type;
static PyObject *result_type;         // of arrays that the exchange API makes
static void *(*device_alloc)(int, size_t);  // fakecuda_alloc and fakecuda_free; NULL: host memory stands in
static void (*device_free)(void *);
static void *streams[MAX_DEVICES];
static long long live_arrays, live_memory, without_gil;

// ---- faults and counts ----

enum { ALLOCATE, OWNED, OBJECT, BORROW, STREAM, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"allocate", "owned", "object", "borrow", "stream"};
static long long calls[FUNCTIONS], failing[FUNCTIONS];  // calls so far; calls until one fails, 0: none does

static int called(int function) {
  calls[function]++;
  return failing[function] > 0 && --failing[function] == 0;
}

static int called_and_failed(int function) {
  if (!called(function)) return 0;
  PyErr_Format(PyExc_RuntimeError, "%s was told to fail", names[function]);
  return 1;
}

// ---- tensors that change hands ----

typedef struct {
  gf_dl_managed legacy;
  gf_dl_managed_versioned versioned;
  int64_t shape[MAX_NDIM], strides[MAX_NDIM];
  PyObject *owner;  // of the memory; NULL: `memory` is the export's own
  void *memory;
  void (*release)(void *);
  int deleted;
} export;
static export *exports[MAX_EXPORTS];
static int exports_len;

static void delete(export *x) {
  if (!PyGILState_Check()) without_gil++;
  if (x->deleted++ > 0) return;
  Py_CLEAR(x->owner);
  if (x->memory != NULL) x->release(x->memory), live_memory--;
}
static void delete_legacy(gf_dl_managed *m) { delete(m->manager); }
static void delete_versioned(gf_dl_managed_versioned *m) { delete(m->manager); }

// A copy of the tensor with extents of its own, in both forms.
static export *new_export(const gf_dl_tensor *tensor, PyObject *owner) {
  export *x = exports_len < MAX_EXPORTS ? calloc(1, sizeof *x) : NULL;
  if (x == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  gf_dl_tensor t = *tensor;
  memcpy(x->shape, t.shape, (size_t)t.ndim * sizeof *x->shape);
  if (t.strides != NULL) memcpy(x->strides, t.strides, (size_t)t.ndim * sizeof *x->strides);
  t.shape = x->shape;
  t.strides = t.strides == NULL ? NULL : x->strides;
  x->legacy = (gf_dl_managed){t, x, delete_legacy};
  x->versioned = (gf_dl_managed_versioned){{GF_DL_MAJOR, 3}, x, delete_versioned, 0, t};
  x->owner = Py_XNewRef(owner);
  return exports[exports_len++] = x;
}

// ---- Array ----

static int64_t elements(const gf_dl_tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
  return n;
}

static int read_dims(PyObject *sequence, int64_t *dims) {
  PyObject *fast = PySequence_Fast(sequence, "dims");
  if (fast == NULL) return -1;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  for (Py_ssize_t i = 0; i < n && i < MAX_NDIM; i++) dims[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
  Py_DECREF(fast);
  if (n > MAX_NDIM) PyErr_SetString(PyExc_ValueError, "too many dimensions");
  return PyErr_Occurred() ? -1 : (int)n;
}

static array *blank(PyTypeObject *type) {
  array *self = (array *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  live_arrays++;
  self->tensor.shape = self->shape;
  return self;
}

static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *words[] = {"address", "shape", "strides", "dtype", "device", "byte_offset", "keep", NULL};
  unsigned long long address, offset = 0;
  PyObject *shape, *strides = Py_None, *keep = Py_None;
  int code = 2, bits = 32, device = GF_DL_CPU, index = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KO|O(ii)(ii)KO", words, &address, &shape, &strides, &code, &bits, &device,
                                   &index, &offset, &keep))
    return NULL;
  array *self = blank(type);
  if (self == NULL) return NULL;
  int ndim = read_dims(shape, self->shape);
  if (ndim < 0 || (strides != Py_None && read_dims(strides, self->strides) != ndim)) {
    Py_DECREF(self);
    return NULL;
  }
  self->tensor = (gf_dl_tensor){.data = (void *)(uintptr_t)address, .device = {device, index}, .ndim = ndim,
                                .dtype = {(uint8_t)code, (uint8_t)bits, 1}, .shape = self->shape,
                                .strides = strides == Py_None ? NULL : self->strides, .byte_offset = offset};
  self->keep = Py_NewRef(keep);
  return (PyObject *)self;
}

static void array_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  live_arrays--;
  Py_XDECREF(((array *)object)->keep);
  type->tp_free(object);
}

static PyObject *tuple_of(int n, const int64_t *dims) {
  PyObject *tuple = PyTuple_New(n);
  for (int i = 0; tuple != NULL && i < n; i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(dims[i]));
  return tuple;
}

static PyObject *get_shape(PyObject *o, void *unused) {
  (void)unused;
  return tuple_of(((array *)o)->tensor.ndim, ((array *)o)->shape);
}

static PyObject *get_strides(PyObject *o, void *unused) {
  (void)unused;
  array *a = (array *)o;
  return a->tensor.strides == NULL ? Py_NewRef(Py_None) : tuple_of(a->tensor.ndim, a->strides);
}

static PyObject *get_address(PyObject *o, void *unused) {
  (void)unused;
  const gf_dl_tensor *t = &((array *)o)->tensor;
  return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)t->data + t->byte_offset);
}

static PyObject *get_device(PyObject *o, void *unused) {
  (void)unused;
  gf_dl_device d = ((array *)o)->tensor.device;
  return d.type == GF_DL_CPU ? PyUnicode_FromString("cpu") : PyUnicode_FromFormat("device %d:%d", d.type, d.index);
}

static PyObject *get_dtype(PyObject *o, void *unused) {
  (void)unused;
  gf_dl_dtype d = ((array *)o)->tensor.dtype;
  return PyUnicode_FromFormat("dtype %d:%d", d.code, d.bits);
}

static PyObject *dlpack_device(PyObject *o, PyObject *unused) {
  (void)unused;
  gf_dl_device d = ((array *)o)->tensor.device;
  return Py_BuildValue("(ii)", d.type, d.index);
}

static int is_versioned(const char *name) { return strstr(name, "versioned") != NULL; }

// What producers do: a capsule that nobody has taken deletes its tensor.
static void drop_capsule(PyObject *capsule) {
  const char *name = PyCapsule_GetName(capsule);
  if (strncmp(name, "dltensor", 8) != 0) return;
  void *managed = PyCapsule_GetPointer(capsule, name);
  if (is_versioned(name)) {
    gf_dl_managed_versioned *m = managed;
    if (m->deleter != NULL) m->deleter(m);
  } else {
    gf_dl_managed *m = managed;
    if (m->deleter != NULL) m->deleter(m);
  }
}

// export(name, major, deleter): a capsule of that name around a tensor of that generation, with or without a deleter.
static PyObject *array_export(PyObject *o, PyObject *args, PyObject *kwargs) {
  static char *words[] = {"name", "major", "deleter", NULL};
  static const char *const known[] = {"dltensor", "dltensor_versioned", "used_dltensor", "used_dltensor_versioned", "tensor"};
  const char *asked, *name = NULL;
  int major = GF_DL_MAJOR, deleter = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|ip", words, &asked, &major, &deleter)) return NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i], asked) == 0) name = known[i];  // a capsule borrows its name
  export *x = name == NULL ? NULL : new_export(&((array *)o)->tensor, o);
  if (x == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no capsule is called %s", asked);
  x->versioned.version.major = (uint32_t)major;
  if (!deleter) x->legacy.deleter = NULL, x->versioned.deleter = NULL;
  return PyCapsule_New(is_versioned(name) ? (void *)&x->versioned : (void *)&x->legacy, name, drop_capsule);
}

static PyGetSetDef array_getset[] = {
    {"shape", get_shape, NULL, NULL, NULL},   {"strides", get_strides, NULL, NULL, NULL}, {"address", get_address, NULL, NULL, NULL},
    {"device", get_device, NULL, NULL, NULL}, {"dtype", get_dtype, NULL, NULL, NULL},     {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef array_methods[] = {
    {"export", (PyCFunction)(void (*)(void))array_export, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject array_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fakearray.Array",
    .tp_basicsize = sizeof(array),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = array_new,
    .tp_dealloc = array_dealloc,
    .tp_getset = array_getset,
    .tp_methods = array_methods,
};

// ---- the exchange API ----

static int is_array(void *object) {
  if (PyObject_TypeCheck((PyObject *)object, &array_type)) return 1;
  PyErr_SetString(PyExc_TypeError, "not an Array");
  return 0;
}

// Memory of a device, or of the host where that does not exist: nobody will get to touch it.
static int allocate_memory(export *x) {
  gf_dl_tensor *t = &x->versioned.tensor;
  size_t bytes = (size_t)elements(t) * ((t->dtype.bits * (size_t)t->dtype.lanes + 7) / 8);
  if (t->device.type == GF_DL_CUDA && device_alloc != NULL) x->memory = device_alloc(t->device.index, bytes);
  x->release = x->memory == NULL ? free : device_free;
  if (x->memory == NULL) x->memory = malloc(bytes + 1);
  t->data = x->memory;
  if (x->memory != NULL) live_memory++;
  return x->memory == NULL ? -1 : 0;
}

static int api_allocate(gf_dl_tensor *prototype, gf_dl_managed_versioned **out, void *context,
                        void (*set_error)(void *, const char *, const char *)) {
  gf_dl_tensor t = *prototype;
  t.strides = NULL;
  t.byte_offset = 0;
  export *x = called(ALLOCATE) ? NULL : new_export(&t, NULL);
  if (x == NULL || allocate_memory(x) != 0) {
    set_error(context, "MemoryError", "could not allocate");
    return -1;
  }
  *out = &x->versioned;
  return 0;
}

static int api_owned_from_object(void *object, gf_dl_managed_versioned **out) {
  if (!is_array(object) || called_and_failed(OWNED)) return -1;
  export *x = new_export(&((array *)object)->tensor, object);
  if (x == NULL) return -1;
  *out = &x->versioned;
  return 0;
}

static void drop_owned(PyObject *capsule) {
  gf_dl_managed_versioned *m = PyCapsule_GetPointer(capsule, "owned");
  m->deleter(m);
}

static int api_object_from_owned(gf_dl_managed_versioned *m, void **out) {
  if (called_and_failed(OBJECT)) {
    m->deleter(m);
    return -1;
  }
  array *self = blank((PyTypeObject *)result_type);
  if (self == NULL) return -1;
  memcpy(self->shape, m->tensor.shape, (size_t)m->tensor.ndim * sizeof *self->shape);
  self->tensor = m->tensor;
  self->tensor.shape = self->shape;
  self->keep = PyCapsule_New(m, "owned", drop_owned);
  *out = self;
  return 0;
}

static int api_borrow_from_object(void *object, gf_dl_tensor *out) {
  if (!is_array(object) || called_and_failed(BORROW)) return -1;
  *out = ((array *)object)->tensor;
  return 0;
}

static int api_current_stream(int32_t type, int32_t index, void **out) {
  if (called_and_failed(STREAM)) return -1;
  if (type != GF_DL_CUDA || index < 0 || index >= MAX_DEVICES) {
    PyErr_Format(PyExc_ValueError, "no stream on device %d:%d", type, index);
    return -1;
  }
  *out = streams[index];
  return 0;
}

// ---- functions of the module ----

// exchange(major, minor, borrow, prev): the address of a new table; tables are never freed.
static PyObject *new_exchange(PyObject *module, PyObject *args, PyObject *kwargs) {
  (void)module;
  static char *words[] = {"major", "minor", "borrow", "prev", NULL};
  int major, minor, borrow = 1;
  unsigned long long prev = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii|pK", words, &major, &minor, &borrow, &prev)) return NULL;
  gf_dl_exchange *api = malloc(sizeof *api);
  *api = (gf_dl_exchange){{{(uint32_t)major, (uint32_t)minor}, (gf_dl_header *)(uintptr_t)prev}, api_allocate, api_owned_from_object,
                          api_object_from_owned, borrow ? api_borrow_from_object : NULL, api_current_stream};
  if (major != GF_DL_MAJOR) memset(&api->allocate, 0xEE, sizeof *api - offsetof(gf_dl_exchange, allocate));  // unknown: crash if used
  return PyLong_FromVoidPtr(api);
}

static PyObject *capsule(PyObject *module, PyObject *address) {
  (void)module;
  return PyCapsule_New(PyLong_AsVoidPtr(address), "dlpack_exchange_api", NULL);
}

static PyObject *set_results(PyObject *module, PyObject *type) {
  (void)module;
  Py_XSETREF(result_type, Py_NewRef(type));
  Py_RETURN_NONE;
}

static PyObject *set_driver(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long alloc, release;
  if (!PyArg_ParseTuple(args, "KK", &alloc, &release)) return NULL;
  device_alloc = (void *(*)(int, size_t))(uintptr_t)alloc;
  device_free = (void (*)(void *))(uintptr_t)release;
  Py_RETURN_NONE;
}

static PyObject *set_stream(PyObject *module, PyObject *args) {
  (void)module;
  int index;
  unsigned long long stream;
  if (!PyArg_ParseTuple(args, "iK", &index, &stream)) return NULL;
  streams[index] = (void *)(uintptr_t)stream;
  Py_RETURN_NONE;
}

// fail(function, nth): the nth call from now on fails.
static PyObject *fail(PyObject *module, PyObject *args) {
  (void)module;
  const char *name;
  int nth;
  if (!PyArg_ParseTuple(args, "si", &name, &nth)) return NULL;
  for (int i = 0; i < FUNCTIONS; i++)
    if (strcmp(names[i], name) == 0) failing[i] = nth;
  Py_RETURN_NONE;
}

// counts(): calls of each function, what is alive, and deleters that ran without the GIL.
static PyObject *counts(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  PyObject *all = Py_BuildValue("{s:L,s:L,s:L}", "arrays", live_arrays, "memory", live_memory, "without gil", without_gil);
  for (int i = 0; all != NULL && i < FUNCTIONS; i++) {
    PyObject *n = PyLong_FromLongLong(calls[i]);
    PyDict_SetItemString(all, names[i], n);
    Py_DECREF(n);
  }
  return all;
}

// deleted(): how often the deleter of each tensor ran that has changed hands, in order.
static PyObject *deleted(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  PyObject *list = PyList_New(exports_len);
  for (int i = 0; list != NULL && i < exports_len; i++) PyList_SET_ITEM(list, i, PyLong_FromLong(exports[i]->deleted));
  return list;
}

static PyMethodDef functions[] = {
    {"exchange", (PyCFunction)(void (*)(void))new_exchange, METH_VARARGS | METH_KEYWORDS, NULL},
    {"capsule", capsule, METH_O, NULL},
    {"set_results", set_results, METH_O, NULL},
    {"set_driver", set_driver, METH_VARARGS, NULL},
    {"set_stream", set_stream, METH_VARARGS, NULL},
    {"fail", fail, METH_VARARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {"deleted", deleted, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "fakearray", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_fakearray(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL || PyType_Ready(&array_type) < 0) return NULL;
  result_type = Py_NewRef(&array_type);
  return PyModule_AddObjectRef(module, "Array", (PyObject *)&array_type) < 0 ? NULL : module;
}
