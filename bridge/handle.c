// torch's stable C functions (the AOTI shims) for tensors that no Python object stands for.
//
// Why not the exchange API: what it exports keeps the entry's own Python object, with its attributes and weak
// references, alive; and dropping it takes the GIL. A tensor made here over the same storage has none of this. The
// functions are in every torch since 2.6, the exchange API since 2.10.
#include "handle.h"


enum { MAX_DTYPES = 128 };

int gf_handles_ready;
static int64_t elem_bytes[MAX_DTYPES];  // by torch's number of the dtype

static struct {
  int (*sizes)(gf_handle, int64_t **);
  int (*strides)(gf_handle, int64_t **);
  int (*ndim)(gf_handle, int64_t *);
  int (*dtype)(gf_handle, int32_t *);
  int (*device_type)(gf_handle, int32_t *);
  int (*device_index)(gf_handle, int32_t *);
  int (*offset)(gf_handle, int64_t *);
  int (*reinterpret)(gf_handle, int64_t, const int64_t *, const int64_t *, int64_t, gf_handle *);
  int (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, gf_handle *);
  int (*free)(gf_handle);
  int (*to_object)(gf_handle, void *, void **);  // since torch 2.15
  PyObject *(*wrap)(const void *);               // THPVariable_Wrap(const at::TensorBase &), before
} torch;

static const struct {
  const char *name;
  void *slot;
} needed[] = {
    {"aoti_torch_get_sizes", &torch.sizes},
    {"aoti_torch_get_strides", &torch.strides},
    {"aoti_torch_get_dim", &torch.ndim},
    {"aoti_torch_get_dtype", &torch.dtype},
    {"aoti_torch_get_device_type", &torch.device_type},
    {"aoti_torch_get_device_index", &torch.device_index},
    {"aoti_torch_get_storage_offset", &torch.offset},
    {"aoti_torch__reinterpret_tensor", &torch.reinterpret},
    {"aoti_torch_empty_strided", &torch.empty},
    {"aoti_torch_delete_tensor_object", &torch.free},
};

static int find_all(void) {
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    if ((*(void **)needed[i].slot = gf_symbol("libtorch_cpu.so", needed[i].name)) == NULL) return 0;
  torch.to_object = (int (*)(gf_handle, void *, void **))gf_symbol("libtorch_cpu.so", "torch_tensor_to_pyobject");
  torch.wrap = (PyObject * (*)(const void *)) gf_symbol("libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE");
  return torch.to_object != NULL || torch.wrap != NULL;
}

const void *gf_handle_impl(gf_handle tensor) { return gf_pointer(tensor, 0); }
const void *gf_handle_storage(gf_handle tensor) { return gf_pointer(gf_handle_impl(tensor), gf_words.storage_at); }

// Strides of extents 0 and 1 mean nothing.
static void measure(gf_extent *x, int64_t ndim, const int64_t *sizes, const int64_t *strides) {
  int64_t step = 1, last = 0;
  x->elements = 1, x->contiguous = 1;
  for (int64_t i = ndim - 1; i >= 0; i--) {
    x->contiguous &= sizes[i] == 1 || strides[i] == step;
    last += (sizes[i] - 1) * strides[i];
    step *= sizes[i];
    x->elements *= sizes[i];
  }
  if (x->elements == 0) x->contiguous = 1;
  x->bytes = x->elements * x->elem_bytes;
  x->span = x->elements == 0 ? 0 : (last + 1) * x->elem_bytes;
}

// The address is computed: asked for it, torch would first copy the memory of a tensor that it made by copy-on-write.
int gf_handle_extent(gf_handle tensor, gf_extent *x) {
  int64_t *sizes, *strides, ndim;
  if (torch.offset(tensor, &x->offset) || torch.sizes(tensor, &sizes) || torch.strides(tensor, &strides) || torch.ndim(tensor, &ndim) ||
      torch.dtype(tensor, &x->dtype) || torch.device_type(tensor, &x->device_type) || torch.device_index(tensor, &x->device_index))
    return -1;
  x->elem_bytes = x->dtype >= 0 && x->dtype < MAX_DTYPES ? elem_bytes[x->dtype] : 0;
  measure(x, ndim, sizes, strides);
  uint64_t storage = gf_word(gf_handle_storage(tensor), gf_words.data_at);
  x->address = x->elements == 0 ? 0 : storage + (uint64_t)(x->offset * x->elem_bytes);
  return 0;
}

gf_handle gf_handle_over(gf_handle tensor) {
  static const int64_t step = 1;
  gf_handle made;
  gf_extent x;
  if (gf_handle_extent(tensor, &x) != 0 || x.elem_bytes == 0) return NULL;
  int64_t count = (int64_t)gf_word(gf_handle_storage(tensor), gf_words.bytes_at) / x.elem_bytes;
  return torch.reinterpret(tensor, 1, &count, &step, -x.offset, &made) == 0 ? made : NULL;
}

gf_handle gf_handle_cut(gf_handle flat, int32_t ndim, const int64_t *shape, int64_t offset) {
  int64_t strides[GF_MAX_NDIM], step = 1;
  gf_handle made;
  if (ndim > GF_MAX_NDIM) return NULL;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return torch.reinterpret(flat, ndim, shape, strides, offset, &made) == 0 ? made : NULL;
}

void gf_handle_drop(gf_handle tensor) { torch.free(tensor); }

PyObject *gf_handle_wrap(gf_handle tensor) {
  void *object = NULL;
  if (torch.to_object == NULL) return torch.wrap(tensor);
  return torch.to_object(tensor, NULL, &object) == 0 ? object : NULL;
}

int gf_handle_is_usual(gf_handle tensor) {
  static const int64_t none = 0, step = 1;
  gf_extent x;
  gf_handle made;
  if (gf_handle_extent(tensor, &x) != 0 || torch.empty(1, &none, &step, x.dtype, x.device_type, x.device_index, &made) != 0) return 0;
  int usual = gf_word(gf_handle_impl(tensor), gf_words.keys_at) == gf_word(gf_handle_impl(made), gf_words.keys_at);
  torch.free(made);
  return usual;
}

// ---- proof on real tensors ----

static int learn_size(PyObject *pair) {
  int32_t dtype;
  if (torch.dtype(gf_tensor_handle(PyTuple_GET_ITEM(pair, 0)), &dtype) || dtype < 0 || dtype >= MAX_DTYPES) return 0;
  elem_bytes[dtype] = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 1));
  return 1;
}

// Does a tensor made over a storage begin where that does, count as one more user of it, and go without a trace?
static int covers_storage(gf_handle tensor) {
  const void *storage = gf_handle_storage(tensor);
  uint32_t before = gf_refs(storage, gf_words.storage_refs_at);
  gf_handle over = gf_handle_over(tensor), cut;
  gf_extent x, y;
  if (over == NULL) return 0;
  int64_t shape[] = {2, 1};
  int right = gf_refs(storage, gf_words.storage_refs_at) == before + 1 && gf_word(gf_handle_impl(over), gf_words.slot_at) == 0 &&
              gf_handle_extent(over, &x) == 0 && x.address == gf_word(storage, gf_words.data_at);
  if (right && (cut = gf_handle_cut(over, 2, shape, 1)) != NULL) {
    right = gf_handle_extent(cut, &y) == 0 && y.elements == 2 && y.address == x.address + (uint64_t)x.elem_bytes;
    gf_handle_drop(cut);
  }
  gf_handle_drop(over);
  return right && gf_refs(storage, gf_words.storage_refs_at) == before;
}

static int wraps(gf_handle tensor) {
  gf_handle over = gf_handle_over(tensor);
  if (over == NULL) return 0;
  PyObject *object = gf_handle_wrap(over);
  gf_handle_drop(over);
  int right = object != NULL && Py_TYPE(object) == (PyTypeObject *)gf_hooks.tensor && Py_REFCNT(object) == 1;
  Py_XDECREF(object);
  return right;
}

int gf_learn_handles(PyObject *sizes, PyObject *views) {
  gf_handles_ready = 0;
  memset(elem_bytes, 0, sizeof elem_bytes);
  if (!gf_words.ready || !find_all() || PyList_GET_SIZE(views) == 0) return 0;
  int right = 1;
  for (Py_ssize_t i = 0; right && i < PyList_GET_SIZE(sizes); i++) right = learn_size(PyList_GET_ITEM(sizes, i));
  for (Py_ssize_t i = 0; right && i < PyList_GET_SIZE(views); i++) {
    gf_handle view = gf_tensor_handle(PyList_GET_ITEM(views, i));
    right = covers_storage(view) && wraps(view);
  }
  PyErr_Clear();
  return gf_handles_ready = right;
}
