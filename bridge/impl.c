// Reads a plain torch.Tensor from the words of its TensorImpl: 4 ns where torch's stable C functions, which do the same
// behind one call each, take 20.
//
// torch keeps up to five extents and strides inside the TensorImpl, and dtype, device and a few flags in one word. None has
// a stable offset, so gf_learn_impl looks for each in tensors made for the purpose, as plain.c does, and everything has to
// be found exactly once. What a word means is never guessed: entries are compared with the first of their job, which
// torch's functions have read.
#include "collect.h"

enum { INLINE_NDIM = 5, IMPL_WORDS = 23, STORAGE_WORDS = 11, MOST_PROBES = 64 };

static struct {
  int ready;
  int ndim_at;     // words of the TensorImpl; the extents follow, then the strides
  int offset_at;   // in elements
  int storage_at;  // pointer to the StorageImpl
  int kind_at;     // dtype, device and flags
  uint64_t kind_mask;  // the bytes of dtype and device
  int index_byte;  // that of the device's index
  int data_at;     // word of the StorageImpl
} at;

static const uint64_t *impl_of(PyObject *tensor) { return *(const uint64_t *const *)gf_tensor_handle(tensor); }

static uint8_t byte_of(uint64_t word, int byte) { return (uint8_t)(word >> 8 * byte); }

static int has_elements(int64_t ndim, const int64_t *sizes) {
  for (int64_t i = 0; i < ndim; i++)
    if (sizes[i] == 0) return 0;
  return 1;
}

// What is read here says nothing of dtype and device: q has them from the first entry.
static int read_words(const uint64_t *impl, int64_t elem_bytes, gf_quick *q) {
  q->ndim = (int64_t)impl[at.ndim_at];
  if (q->ndim < 0 || q->ndim > INLINE_NDIM) return 0;
  q->sizes = (int64_t *)&impl[at.ndim_at + 1];
  q->strides = q->sizes + INLINE_NDIM;
  const uint64_t *storage = (const uint64_t *)(uintptr_t)impl[at.storage_at];
  q->data = (void *)(uintptr_t)(storage[at.data_at] + impl[at.offset_at] * (uint64_t)elem_bytes);
  return storage[at.data_at] != 0 || !has_elements(q->ndim, q->sizes);
}

// The first entry as torch read it, and its words: where they agree, entries with the same kind word are read by theirs.
void gf_impl_first(gf_job *job, PyObject *tensor, const gf_quick *q, int64_t elem_bytes) {
  gf_quick read;
  job->by_words = 0;
  if (!at.ready || q->data == NULL) return;  // torch gives no address for a tensor without elements
  const uint64_t *impl = impl_of(tensor);
  if (!read_words(impl, elem_bytes, &read) || read.data != q->data || read.ndim != q->ndim || read.sizes != q->sizes ||
      read.strides != q->strides || byte_of(impl[at.kind_at], at.index_byte) != (uint8_t)q->device_index)
    return;
  job->by_words = 1;
  job->kind_word = impl[at.kind_at] & at.kind_mask;
  job->elem_bytes = elem_bytes;
}

// torch computes an address also where storage.resize_(0) has freed the memory: the offset of the tensor.
int gf_has_memory(PyObject *tensor, const gf_dl_tensor *t) {
  if (!has_elements(t->ndim, t->shape)) return 1;
  return t->data != NULL && (!at.ready || gf_storage_data(tensor) != 0);
}

uint64_t gf_storage_data(PyObject *tensor) {
  if (!at.ready) return 0;
  const uint64_t *storage = (const uint64_t *)(uintptr_t)impl_of(tensor)[at.storage_at];
  return storage == NULL ? 0 : storage[at.data_at];
}

// Before torch was met there is no tensor type, so that nothing is read of an object of unknown kind.
void gf_prefetch(PyObject *object) {
  if (Py_TYPE(object) != (PyTypeObject *)gf_hooks.tensor) return;
  const char *impl = (const char *)impl_of(object);
  __builtin_prefetch(impl);
  __builtin_prefetch(impl + 64);
  __builtin_prefetch(impl + 128);
}

int gf_impl_read(const gf_job *job, PyObject *tensor, gf_quick *q) {
  if (!job->by_words) return 0;
  const uint64_t *impl = impl_of(tensor);
  if ((impl[at.kind_at] & at.kind_mask) != job->kind_word) return 0;
  q->dtype = job->quick_dtype, q->device_type = job->quick_device_type, q->device_index = job->quick_device_index;
  return read_words(impl, job->elem_bytes, q);
}

// ---- where the words are ----

typedef struct {
  const uint64_t *impl;
  gf_quick q;
  uint64_t storage, offset;
  int64_t elem_bytes;
} probe;

typedef struct {
  int len;
  probe probes[MOST_PROBES];
} probe_list;

static int is_ndim(const probe *p, int word) {
  return word + 2 * INLINE_NDIM < IMPL_WORDS && p->impl[word] == (uint64_t)p->q.ndim &&
         p->q.sizes == (const int64_t *)&p->impl[word + 1] && p->q.strides == p->q.sizes + INLINE_NDIM;
}
static int is_offset(const probe *p, int word) { return p->impl[word] == p->offset; }
static int is_storage(const probe *p, int word) { return p->impl[word] == p->storage; }
static int is_data(const probe *p, int word) {
  const uint64_t *storage = (const uint64_t *)(uintptr_t)p->storage;
  return storage[word] + p->offset * (uint64_t)p->elem_bytes == (uint64_t)(uintptr_t)p->q.data;
}

// The one word that means the same in every probe, or -1.
static int find(const probe_list *list, int (*means)(const probe *, int), int words) {
  int found = -1;
  for (int word = 0; word < words; word++) {
    int all = list->len > 0;
    for (int i = 0; all && i < list->len; i++) all = means(&list->probes[i], word);
    if (all && found >= 0) return -1;
    if (all) found = word;
  }
  return found;
}

// Vectors without offset: what else than dtype and device might stand in the kind word is the same in all of them.
static int is_simple(const probe *p) { return p->q.ndim == 1 && p->offset == 0 && p->q.strides[0] == 1; }

static uint64_t byte_mask(int byte) { return (uint64_t)0xff << 8 * byte; }

// Do simple probes have equal words, under a mask, where their dtypes are equal, and only there?
static int tells_dtypes(const probe_list *list, int word, uint64_t mask) {
  for (int i = 0; i < list->len; i++)
    for (int j = 0; j < i; j++) {
      const probe *a = &list->probes[i], *b = &list->probes[j];
      if (!is_simple(a) || !is_simple(b)) continue;
      int same = ((a->impl[word] ^ b->impl[word]) & mask) == 0;
      if (same != (a->q.dtype == b->q.dtype)) return 0;
    }
  return 1;
}

// The bytes of a word that are equal in simple probes of one dtype. What is left between flags is never set.
static uint64_t steady_bytes(const probe_list *list, int word) {
  uint64_t differ = 0, mask = 0;
  for (int i = 0; i < list->len; i++)
    for (int j = 0; j < i; j++) {
      const probe *a = &list->probes[i], *b = &list->probes[j];
      if (is_simple(a) && is_simple(b) && a->q.dtype == b->q.dtype) differ |= a->impl[word] ^ b->impl[word];
    }
  for (int byte = 0; byte < 8; byte++)
    if ((differ & byte_mask(byte)) == 0) mask |= byte_mask(byte);
  return mask;
}

// Leaves of mask the bytes without which the word would not tell dtypes.
static uint64_t telling_bytes(const probe_list *list, int word, uint64_t mask) {
  for (int byte = 7; byte >= 0; byte--)
    if (tells_dtypes(list, word, mask & ~byte_mask(byte))) mask &= ~byte_mask(byte);
  return mask;
}

static int find_kind(const probe_list *list, uint64_t *mask) {
  int found = -1;
  for (int word = 0; word < IMPL_WORDS; word++) {
    uint64_t steady = steady_bytes(list, word);
    if (!tells_dtypes(list, word, steady)) continue;
    if (found >= 0) return -1;
    found = word;
    *mask = telling_bytes(list, word, steady);
  }
  return found;
}

// The byte of the kind word that is one value in all probes and another in all tensors elsewhere: the device's type.
static int find_device(const probe_list *list, PyObject *elsewhere) {
  int found = -1;
  for (int byte = 0; byte < 8; byte++) {
    int here = byte_of(list->probes[0].impl[at.kind_at], byte), there = -1, all = PyList_GET_SIZE(elsewhere) > 0;
    for (int i = 0; all && i < list->len; i++) all = byte_of(list->probes[i].impl[at.kind_at], byte) == here;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(elsewhere); i++) {
      int value = byte_of(impl_of(PyList_GET_ITEM(elsewhere, i))[at.kind_at], byte);
      if (there < 0) there = value;
      all = value == there && value != here;
    }
    if (all && found >= 0) return -1;
    if (all) found = byte;
  }
  return found;
}

// The CPU has the index -1, which one byte holds; gf_impl_first asks for the index of other devices in the same place.
static int find_index(const probe_list *list) {
  int found = -1;
  for (int byte = 0; byte < 8; byte++) {
    int all = 1;
    for (int i = 0; all && i < list->len; i++)
      all = list->probes[i].q.device_index == -1 && byte_of(list->probes[i].impl[at.kind_at], byte) == 0xff;
    if (all && found >= 0) return -1;
    if (all) found = byte;
  }
  return found;
}

static int add(probe_list *list, PyObject *tuple) {
  probe *p = &list->probes[list->len];
  PyObject *tensor;
  unsigned long long storage, offset;
  int elem_bytes;
  if (list->len == MOST_PROBES || !PyArg_ParseTuple(tuple, "OKKi", &tensor, &storage, &offset, &elem_bytes)) return 0;
  *p = (probe){.impl = impl_of(tensor), .storage = storage, .offset = offset, .elem_bytes = elem_bytes};
  list->len++;
  return gf_quick_read(tensor, &p->q);
}

static int learn(PyObject *probes, PyObject *elsewhere) {
  probe_list list = {0};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(probes); i++)
    if (!add(&list, PyList_GET_ITEM(probes, i))) return 0;
  at.ndim_at = find(&list, is_ndim, IMPL_WORDS);
  at.offset_at = find(&list, is_offset, IMPL_WORDS);
  at.storage_at = find(&list, is_storage, IMPL_WORDS);
  at.kind_at = find_kind(&list, &at.kind_mask);
  if (at.ndim_at < 0 || at.offset_at < 0 || at.storage_at < 0 || at.kind_at < 0) return 0;
  at.data_at = find(&list, is_data, STORAGE_WORDS);
  at.index_byte = find_index(&list);
  int device_byte = find_device(&list, elsewhere);
  if (at.data_at < 0 || at.index_byte < 0 || device_byte < 0) return 0;
  at.kind_mask |= byte_mask(device_byte) | byte_mask(at.index_byte);
  return 1;
}

// probes is a list of tuples: plain tensor on the CPU with elements and at most five dimensions, address of its
// StorageImpl, its storage offset, bytes of an element. elsewhere is a list of tensors without memory.
int gf_learn_impl(PyObject *probes, PyObject *elsewhere) {
  at.ready = learn(probes, elsewhere);
  PyErr_Clear();
  return at.ready;
}
