// torch's stable C functions (the AOTI shims), found at run time in the libtorch that the process has loaded.
//
// They read a tensor in about 10 ns where the exchange API takes 45, and make one in 0.4 µs where torch.empty called
// from Python takes 1.1. A shim gets the address of an at::Tensor; the word of the Python object that gf_learn_torch
// found is one. Everything is checked against the exchange API on real tensors before it is used; where anything is
// missing or differs, the exchange API and torch.empty do the same job.
#include <dlfcn.h>

#include "collect.h"

typedef void *handle;  // at::Tensor *

static struct {
  int (*data_ptr)(handle, void **);
  int (*sizes)(handle, int64_t **);
  int (*strides)(handle, int64_t **);
  int (*ndim)(handle, int64_t *);
  int (*dtype)(handle, int32_t *);
  int (*device_type)(handle, int32_t *);
  int (*device_index)(handle, int32_t *);
  int (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, handle *);
  int (*free)(handle);
  // another tensor over the storage; what is last counts from where the first one begins
  int (*reinterpret)(handle, int64_t, const int64_t *, const int64_t *, int64_t, handle *);
  int (*to_object)(handle, void *, void **);  // since torch 2.15
  PyObject *(*wrap)(const void *);            // THPVariable_Wrap(const at::TensorBase &), before
  int64_t (*modes)(void);                     // c10::impl::TorchDispatchModeTLS::stack_len()
  void *const *(*tracing)(void);              // torch::jit::tracer::getTracingState(): a shared_ptr, empty if none
  void *const *(*transforms)(void);           // at::functorch::getDynamicLayerStack(): a vector, by its begin and end
} torch;

static const struct {
  const char *name;
  void *slot;
} needed[] = {
    {"aoti_torch_get_data_ptr", &torch.data_ptr},         {"aoti_torch_get_sizes", &torch.sizes},
    {"aoti_torch_get_strides", &torch.strides},           {"aoti_torch_get_dim", &torch.ndim},
    {"aoti_torch_get_dtype", &torch.dtype},               {"aoti_torch_get_device_type", &torch.device_type},
    {"aoti_torch_get_device_index", &torch.device_index}, {"aoti_torch_empty_strided", &torch.empty},
    {"aoti_torch_delete_tensor_object", &torch.free},     {"aoti_torch__reinterpret_tensor", &torch.reinterpret},
};
static int can_read, can_make, can_cut;

void *gf_symbol(const char *library, const char *name) {
  void *lib = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);  // only what torch itself has loaded
  void *found = lib == NULL ? NULL : dlsym(lib, name);
  if (lib != NULL) dlclose(lib);
  return found;
}

static int find_all(void) {
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    void *found = gf_symbol("libtorch_cpu.so", needed[i].name);
    if (found == NULL) return 0;
    *(void **)needed[i].slot = found;
  }
  torch.to_object = (int (*)(handle, void *, void **))gf_symbol("libtorch_cpu.so", "torch_tensor_to_pyobject");
  torch.wrap = (PyObject * (*)(const void *)) gf_symbol("libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE");
  torch.modes = (int64_t (*)(void))gf_symbol("libc10.so", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv");
  torch.tracing = (void *const *(*)(void))gf_symbol("libtorch_cpu.so", "_ZN5torch3jit6tracer15getTracingStateEv");
  torch.transforms =
      (void *const *(*)(void))gf_symbol("libtorch_cpu.so", "_ZN2at8functorch20getDynamicLayerStackEv");
  return 1;
}

// Are dispatch modes, a tracer or transforms of torch.func active? -1: these functions are not to be had, ask Python.
int gf_quick_watched(void) {
  if (torch.modes == NULL || torch.tracing == NULL || torch.transforms == NULL) return -1;
  if (torch.modes() > 0 || *torch.tracing() != NULL) return 1;
  void *const *layers = torch.transforms();
  return layers[0] != layers[1];
}

static int read_handle(handle h, gf_quick *q) {
  return torch.data_ptr(h, &q->data) || torch.sizes(h, &q->sizes) || torch.strides(h, &q->strides) || torch.ndim(h, &q->ndim) ||
         torch.dtype(h, &q->dtype) || torch.device_type(h, &q->device_type) || torch.device_index(h, &q->device_index);
}

// DLPack's words for torch's own numbers, noted as tensors come by.
enum { GF_NOTES = 32 };
static struct {
  int32_t dtype, device_type;
  gf_dl_dtype dl_dtype;
  int32_t dl_device_type;
} notes[GF_NOTES];
static int notes_len;

void gf_quick_note(const gf_quick *q, const gf_dl_tensor *t) {
  if (notes_len < GF_NOTES) {
    notes[notes_len].dtype = q->dtype, notes[notes_len].device_type = q->device_type;
    notes[notes_len].dl_dtype = t->dtype, notes[notes_len].dl_device_type = t->device.type;
    notes_len++;
  }
}

int gf_quick_tensor(const gf_quick *q, gf_dl_tensor *t) {
  for (int i = 0; i < notes_len; i++)
    if (notes[i].dtype == q->dtype && notes[i].device_type == q->device_type) {
      int32_t index = q->device_index < 0 ? 0 : q->device_index;
      *t = (gf_dl_tensor){.data = q->data, .device = {notes[i].dl_device_type, index}, .ndim = (int32_t)q->ndim,
                          .dtype = notes[i].dl_dtype, .shape = q->sizes, .strides = q->strides};
      return 1;
    }
  return 0;
}

int gf_quick_read(PyObject *tensor, gf_quick *q) { return can_read && read_handle(gf_tensor_handle(tensor), q) == 0; }

// wrapped is the Python object of a tensor, whose handle it takes.
static PyObject *wrapped(handle made) {
  void *object = NULL;
  if (torch.to_object != NULL)
    torch.to_object(made, NULL, &object);
  else
    object = torch.wrap(made);
  torch.free(made);
  return object;
}

PyObject *gf_quick_make(const gf_quick *like, int64_t ndim, const int64_t *shape) {
  if (!can_make || ndim > GF_MAX_NDIM) return NULL;
  int64_t strides[GF_MAX_NDIM], step = 1;
  for (int64_t i = ndim - 1; i >= 0; i--) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  handle made;
  if (torch.empty(ndim, shape, strides, like->dtype, like->device_type, like->device_index, &made) != 0) return NULL;
  return wrapped(made);
}

PyObject *gf_quick_cut(PyObject *whole, const gf_quick *q, int64_t dim, int64_t start, int64_t rows) {
  if (!can_cut || q->ndim > GF_MAX_NDIM) return NULL;
  int64_t sizes[GF_MAX_NDIM];
  memcpy(sizes, q->sizes, (size_t)q->ndim * sizeof *sizes);
  sizes[dim] = rows;
  handle from = gf_tensor_handle(whole), made;
  if (torch.reinterpret(from, q->ndim, sizes, q->strides, start * q->strides[dim], &made) != 0) return NULL;
  return wrapped(made);
}

// ---- proof on real tensors ----

static int same_as_table(PyObject *tensor, const gf_dl_exchange *api) {
  gf_quick q;
  gf_dl_tensor t;
  if (read_handle(gf_tensor_handle(tensor), &q) != 0 || api->borrow_from_object(tensor, &t) != 0) return 0;
  if (q.data != t.data || q.ndim != t.ndim) return 0;
  size_t bytes = (size_t)t.ndim * sizeof *q.sizes;
  return memcmp(q.sizes, t.shape, bytes) == 0 && memcmp(q.strides, t.strides, bytes) == 0;
}

static int makes_its_like(PyObject *tensor, const gf_dl_exchange *api) {
  gf_quick q;
  gf_dl_tensor t;
  int64_t shape[] = {3, 2};
  can_make = torch.to_object != NULL || torch.wrap != NULL;
  if (!can_make || read_handle(gf_tensor_handle(tensor), &q) != 0) return 0;
  PyObject *made = gf_quick_make(&q, 2, shape);
  int right = made != NULL && Py_TYPE(made) == Py_TYPE(tensor) && api->borrow_from_object(made, &t) == 0 && t.ndim == 2 &&
              t.shape[0] == 3 && t.shape[1] == 2 && t.strides[0] == 2;
  Py_XDECREF(made);
  return right;
}

// Rows from start on of a tensor of rows of two elements; NULL unless they lie where they should. Steals whole.
static PyObject *cut_right(PyObject *whole, const gf_dl_exchange *api, int64_t start, int64_t rows) {
  gf_quick q;
  gf_dl_tensor t;
  int read = whole != NULL && read_handle(gf_tensor_handle(whole), &q) == 0;
  PyObject *part = read ? gf_quick_cut(whole, &q, 0, start, rows) : NULL;
  int right = part != NULL && Py_TYPE(part) == Py_TYPE(whole) && api->borrow_from_object(part, &t) == 0 && t.ndim == 2 &&
              t.shape[0] == rows && t.shape[1] == 2 && t.strides[0] == 2 && t.strides[1] == 1 &&
              (char *)t.data + t.byte_offset == (char *)q.data + 2 * start * (t.dtype.bits / 8);
  if (!right) Py_CLEAR(part);
  Py_XDECREF(whole);
  return part;
}

// Of a whole at the start of its storage, and of one that is not.
static int cuts_its_like(PyObject *tensor, const gf_dl_exchange *api) {
  gf_quick like;
  int64_t shape[] = {5, 2};
  if (read_handle(gf_tensor_handle(tensor), &like) != 0) return 0;
  can_cut = 1;
  PyObject *part = cut_right(cut_right(gf_quick_make(&like, 2, shape), api, 2, 3), api, 1, 2);
  Py_XDECREF(part);
  return part != NULL;
}

// tensors is a list of plain ones of several shapes and dtypes, all of exact type torch.Tensor.
int gf_learn_shims(PyObject *tensors) {
  can_read = can_make = can_cut = 0;
  Py_ssize_t count = PyList_GET_SIZE(tensors);
  const gf_dl_exchange *api = count == 0 ? NULL : gf_exchange_of(Py_TYPE(PyList_GET_ITEM(tensors, 0)));
  if (api == NULL || api->borrow_from_object == NULL || !find_all()) return 0;
  int right = 1;
  for (Py_ssize_t i = 0; i < count; i++) right = right && same_as_table(PyList_GET_ITEM(tensors, i), api);
  can_read = right;
  can_make = right && makes_its_like(PyList_GET_ITEM(tensors, 0), api);
  can_cut = can_make && cuts_its_like(PyList_GET_ITEM(tensors, 0), api);
  PyErr_Clear();
  return can_read + can_make;
}
