// Keeps storages alive without Python objects, each once however many entries and outputs lie in it.
#include "parts.h"

#include "adopted.h"
#include "own_hooks.h"

gf_part *gf_part_retain(gf_part *part) {
  __atomic_add_fetch(&part->refs, 1, __ATOMIC_RELAXED);
  return part;
}

// After the interpreter has gone, its objects are leaked, as torch does.
static void drop_python(PyObject *object) {
  PyObject *type, *value, *trace;
  if (!Py_IsInitialized()) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_Fetch(&type, &value, &trace);
  Py_DECREF(object);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

void gf_part_release(gf_part *part) {
  if (__atomic_sub_fetch(&part->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (part->is_python) drop_python(part->holder);
  else gf_handle_drop(part->holder);
  free(part);
}

PyObject *gf_part_tensor(const gf_part *part) {
  if (part->is_python) {
    PyObject *held = PyObject_CallOneArg(gf_own_hooks.hold, part->holder), *tensor = NULL;
    if (held != NULL && PyTuple_Check(held)) tensor = Py_NewRef(PyTuple_GetItem(held, 0));
    Py_XDECREF(held);
    return tensor;
  }
  gf_handle over = gf_handle_over(part->holder);
  PyObject *tensor = over == NULL ? NULL : gf_handle_wrap(over);
  if (over != NULL) gf_handle_drop(over);
  if (tensor == NULL && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch made no tensor over a storage");
  return tensor;
}

void gf_parts_release(gf_parts *parts) {
  for (int64_t i = 0; i < parts->len; i++) gf_part_release(parts->items[i]);
  free(parts->items);
  *parts = (gf_parts){0};
}

static gf_part *new_part(void *holder, int is_python, uint64_t lo, uint64_t bytes) {
  gf_part *part = holder == NULL ? NULL : malloc(sizeof *part);
  if (part != NULL) *part = (gf_part){.refs = 1, .holder = holder, .is_python = is_python, .lo = lo, .hi = lo + bytes};
  return part;
}

// ---- gathering ----

// Something to keep: a storage met at a tensor, or a part of an adopted output.
typedef struct {
  const void *key;  // equal for what is to be kept once
  PyObject *tensor; // borrowed, or owned where Python was asked
  gf_part *part;    // a reference, if there is one already
} candidate;

typedef struct {
  candidate *items;
  int64_t len, cap;
} candidates;

static int add(candidates *c, candidate item) {
  if (c->len == c->cap) {
    int64_t cap = c->cap == 0 ? 16 : 2 * c->cap;
    candidate *bigger = realloc(c->items, (size_t)cap * sizeof *bigger);
    if (bigger == NULL) return -1;
    c->items = bigger, c->cap = cap;
  }
  c->items[c->len++] = item;
  return 0;
}

static int add_parts(candidates *c, gf_parts *parts) {
  int rc = 0;
  for (int64_t i = 0; i < parts->len; i++)
    if (add(c, (candidate){.key = parts->items[i], .part = parts->items[i]}) == 0) gf_part_retain(parts->items[i]);
    else rc = -1;
  gf_parts_release(parts);
  return rc;
}

// Where handles are to be had.
static int add_tensor(candidates *c, PyObject *tensor, uint64_t address, int64_t bytes) {
  const void *storage = gf_handle_storage(gf_tensor_handle(tensor));
  gf_parts inherited;
  int adopted = gf_adopted_parts_of(storage, gf_word(storage, gf_words.data_at), address, bytes, &inherited);
  if (adopted != 0) return adopted < 0 ? -1 : add_parts(c, &inherited);
  return add(c, (candidate){.key = storage, .tensor = tensor});
}

// Where they are not: the hook makes a tensor that can be kept.
static int add_held(candidates *c, PyObject *tensor, uint64_t address, int64_t bytes) {
  PyObject *held = PyObject_CallOneArg(gf_own_hooks.hold, tensor), *keeper;
  unsigned long long storage, lo, size;
  gf_parts inherited;
  int rc = -1;
  if (held != NULL && PyArg_ParseTuple(held, "OKKK", &keeper, &storage, &lo, &size)) {
    const void *key = (const void *)(uintptr_t)storage;
    int adopted = gf_adopted_parts_of(key, lo, address, bytes, &inherited);
    if (adopted > 0) {
      rc = add_parts(c, &inherited);
    } else if (adopted == 0) {
      gf_part *part = new_part(keeper, 1, lo, size);
      rc = part == NULL ? -1 : add(c, (candidate){.key = key, .part = part});
      if (part != NULL) Py_INCREF(keeper);
      if (part != NULL && rc != 0) gf_part_release(part);
    }
  }
  Py_XDECREF(held);
  return rc;
}

static int by_key(const void *a, const void *b) {
  uintptr_t x = (uintptr_t)((const candidate *)a)->key, y = (uintptr_t)((const candidate *)b)->key;
  return x < y ? -1 : x > y;
}

static gf_part *part_of(candidate *c) {
  if (c->part != NULL) return c->part;
  const void *storage = gf_handle_storage(gf_tensor_handle(c->tensor));
  gf_handle over = gf_handle_over(gf_tensor_handle(c->tensor));
  gf_part *part = new_part(over, 0, gf_word(storage, gf_words.data_at), gf_word(storage, gf_words.bytes_at));
  if (part == NULL && over != NULL) gf_handle_drop(over);
  return part;
}

// Moves each candidate once into parts.
static int settle(candidates *c, gf_parts *parts) {
  if (c->len > 1) qsort(c->items, (size_t)c->len, sizeof *c->items, by_key);
  parts->items = malloc((size_t)(c->len > 0 ? c->len : 1) * sizeof *parts->items);
  if (parts->items == NULL) return -1;
  const void *last = NULL;
  for (int64_t i = 0; i < c->len; i++) {
    candidate *one = &c->items[i];
    if (one->key == last) continue;  // a part that it has is released with the candidates
    last = one->key;
    gf_part *part = part_of(one);
    if (part == NULL) return -1;
    one->part = NULL;
    parts->items[parts->len++] = part;
  }
  return 0;
}

int gf_parts_gather(void *const *tensors, int64_t count, uint64_t address, int64_t bytes, gf_parts *parts) {
  candidates c = {0};
  int rc = 0;
  *parts = (gf_parts){0};
  for (int64_t i = 0; rc == 0 && i < count; i++)
    rc = gf_own_hooks.quick ? add_tensor(&c, tensors[i], address, bytes) : add_held(&c, tensors[i], address, bytes);
  if (rc == 0) rc = settle(&c, parts);
  for (int64_t i = 0; i < c.len; i++)
    if (c.items[i].part != NULL) gf_part_release(c.items[i].part);
  free(c.items);
  if (rc == 0) return 0;
  gf_parts_release(parts);
  if (!PyErr_Occurred()) PyErr_NoMemory();
  return -1;
}
