// The survey of entries: who else uses their memory.
//
// Three passes over the entries, each over all of them:
//   judge   is it a plain tensor, does it require grad: may run Python code, so everything is kept alive meanwhile
//   count   addresses, and the reference counts of Python object, C++ tensor and storage
//   group   entries of one storage together: do they, and a dead tensor they are views of, explain all its users?
// The last two run no Python code, so what they see belongs to one moment.
#include "own.h"

#include "adopt.h"
#include "handle.h"
#include "own_hooks.h"

static int is_tensor(PyObject *o) {
  return gf_hooks.tensor != NULL && PyObject_TypeCheck(o, (PyTypeObject *)gf_hooks.tensor);
}

// ---- judge ----

// An error is an answer that nobody can rely on. -1 for exceptions that are no errors, such as KeyboardInterrupt.
static int swallow(int answer) {
  if (!PyErr_Occurred()) return answer;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return answer;
}

static int attribute_is_true(PyObject *object, PyObject *name) {
  PyObject *value = PyObject_GetAttr(object, name);
  int yes = value != Py_False;  // also where there is no answer
  Py_XDECREF(value);
  return swallow(yes);
}

// A mode of __torch_function__ may answer for the tensor, and run any code.
static int judge_grad(PyObject *tensor, gf_own *record) {
  static PyObject *requires_grad, *is_leaf;
  if (requires_grad == NULL) requires_grad = PyUnicode_InternFromString("requires_grad");
  if (is_leaf == NULL) is_leaf = PyUnicode_InternFromString("is_leaf");
  if (requires_grad == NULL || is_leaf == NULL) return -1;
  if (gf_pointer(gf_handle_impl(gf_tensor_handle(tensor)), gf_words.state_at) == NULL) return GF_OWN_ADOPTABLE;
  int grad = attribute_is_true(tensor, requires_grad);
  if (grad <= 0) return grad < 0 ? -1 : GF_OWN_ADOPTABLE;
  record->flags |= GF_OWN_IS_GRAD;
  int leaf = attribute_is_true(tensor, is_leaf);
  return leaf > 0 ? GF_OWN_LEAF : leaf;
}

// Asks Python about a tensor whose dispatch keys are met for the first time. -1 with an exception that is no error.
static int judge_unknown(PyObject *tensor) {
  PyObject *answer = PyObject_CallOneArg(gf_own_hooks.judge, tensor);
  int plain = swallow(answer == Py_True);
  Py_XDECREF(answer);
  if (plain > 0) gf_remember_plain(tensor);
  return plain;
}

static int judge(gf_job *job, PyObject *object, gf_own *record) {
  if (!is_tensor(object)) return record->reason = GF_OWN_NOT_TORCH;
  int plain = Py_TYPE(object) == (PyTypeObject *)gf_hooks.tensor;
  if (plain && !gf_is_plain(job, object)) plain = judge_unknown(object);
  if (plain < 0) return -1;
  return record->reason = plain ? judge_grad(object, record) : GF_OWN_NOT_PLAIN;
}

static int judge_all(void *const *objects, int64_t count, gf_own *records) {
  gf_job job = {.flags = GF_FLAG_NO_GRAD};  // tensors that require grad are plain here
  for (int64_t i = 0; i < count; i++)
    if (judge(&job, objects[i], &records[i]) < 0) return -1;
  return 0;
}

// ---- tables, kept between surveys ----

// Entries whose storage has more users than one.
typedef struct {
  int64_t entry;
  int32_t group;
  uint64_t lo, hi;  // bytes it touches
} member;

typedef struct {
  const void *storage, *base;  // base: the tensor, no entry, that members are views of
  int64_t members, views, made;  // made: users that the job itself has made, its outputs
  uint64_t end;  // of all members' bytes so far
  int bases, blocked, unordered, overlap, reason;
} group;

static struct {
  member *members;
  group *groups;
  uint64_t *keys;   // of the hash table: addresses, 0 for a free slot
  int64_t *values;
  int64_t slots, members_len, groups_len;
} scratch;

static int reserve(int64_t count) {
  int64_t slots = 16;
  while (slots < 2 * count) slots *= 2;
  scratch.members_len = scratch.groups_len = 0;
  if (slots <= scratch.slots) return 0;
  free(scratch.members), free(scratch.groups), free(scratch.keys), free(scratch.values);
  scratch.members = malloc((size_t)slots * sizeof *scratch.members);
  scratch.groups = malloc((size_t)slots * sizeof *scratch.groups);
  scratch.keys = malloc((size_t)slots * sizeof *scratch.keys);
  scratch.values = malloc((size_t)slots * sizeof *scratch.values);
  int all = scratch.members && scratch.groups && scratch.keys && scratch.values;
  scratch.slots = all ? slots : 0;
  if (!all) PyErr_NoMemory();
  return all ? 0 : -1;
}

static void clear_table(void) { memset(scratch.keys, 0, (size_t)scratch.slots * sizeof *scratch.keys); }

// The value stored under an address; *made says whether the slot was free.
static int64_t *lookup(const void *address, int *made) {
  uint64_t key = (uint64_t)(uintptr_t)address;
  uint64_t mask = (uint64_t)scratch.slots - 1, at = (key >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
  while (scratch.keys[at] != 0 && scratch.keys[at] != key) at = (at + 1) & mask;
  *made = scratch.keys[at] == 0;
  scratch.keys[at] = key;
  return &scratch.values[at];
}

// ---- count ----

static int32_t dlpack_device(int32_t torch_type) {
  static const int32_t known[] = {GF_DL_CPU, GF_DL_CUDA};  // torch's 0 and 1
  return torch_type >= 0 && torch_type < 2 ? known[torch_type] : 100 + torch_type;
}

// Python's and C++'s references to the tensor itself.
static int count_tensor(PyObject *object, const void *impl, int64_t expected) {
  if (gf_refs(impl, gf_words.refs_at) != 1) return GF_OWN_SAVED;
  if (Py_REFCNT(object) != expected) return Py_REFCNT(object) > expected ? GF_OWN_HELD : GF_OWN_UNKNOWN;
  return GF_OWN_ADOPTABLE;
}

static void worsen(gf_own *record, int reason) {
  if (record->reason < reason) record->reason = reason;
}

// What its memory allows, if nobody else uses it. Memory of torch's allocators may be resized, and needs nothing but
// its own address to be given back; memory lent by others, or to other processes, needs more.
static int kind_of_memory(const void *storage, gf_own *record) {
  uint64_t data = gf_word(storage, gf_words.data_at);
  if (gf_is_resizable(storage) && gf_word(storage, gf_words.context_at) == data) return GF_OWN_ADOPTABLE;
  if (!gf_adopted_is(storage, data)) return GF_OWN_FOREIGN;
  record->flags |= GF_OWN_IS_ADOPTED;
  return GF_OWN_ADOPTABLE;
}

// Looks at one plain tensor. Entries whose storage has other users become members, to be looked at together.
static void count(PyObject *object, int64_t expected, int64_t entry, gf_own *record) {
  gf_handle tensor = gf_tensor_handle(object);
  const void *impl = gf_handle_impl(tensor), *storage = gf_handle_storage(tensor);
  gf_extent x;
  int known = storage != NULL && gf_handle_extent(tensor, &x) == 0 && x.elem_bytes != 0;
  if (!known || (x.elements != 0 && gf_word(storage, gf_words.data_at) == 0)) {  // freed: the fall-back refuses it
    record->reason = GF_OWN_UNKNOWN;
    return;
  }
  record->address = x.address, record->bytes = x.bytes;
  record->storage = (uint64_t)(uintptr_t)storage;
  record->storage_address = gf_word(storage, gf_words.data_at);
  record->storage_bytes = (int64_t)gf_word(storage, gf_words.bytes_at);
  record->device_type = dlpack_device(x.device_type), record->device_index = x.device_index < 0 ? 0 : x.device_index;
  if (!x.contiguous) record->flags |= GF_OWN_IS_STRIDED;
  worsen(record, x.contiguous ? GF_OWN_ADOPTABLE : GF_OWN_STRIDED);
  worsen(record, kind_of_memory(storage, record));
  worsen(record, count_tensor(object, impl, expected));
  if (gf_storage_users(storage) != 1)
    scratch.members[scratch.members_len++] = (member){.entry = entry, .lo = x.address, .hi = x.address + (uint64_t)x.span};
}

// ---- group ----

// The tensor that object is a view of, if that uses the same storage.
static const void *base_of(PyObject *object, const void *storage) {
  const void *state = gf_pointer(gf_handle_impl(gf_tensor_handle(object)), gf_words.state_at);
  if (state == NULL || gf_word(state, 0) != gf_words.view_table) return NULL;
  const void *base = gf_pointer(state, gf_words.base_at);
  return base != NULL && gf_pointer(base, gf_words.storage_at) == storage ? base : NULL;
}

static void enter(member *m, PyObject *object, gf_own *record, int32_t outputs) {
  int made;
  const void *storage = (const void *)(uintptr_t)record->storage, *base = base_of(object, storage);
  int64_t *slot = lookup(storage, &made);
  if (made) {
    *slot = scratch.groups_len++;
    scratch.groups[*slot] = (group){.storage = storage, .made = outputs};
  }
  group *g = &scratch.groups[*slot];
  m->group = (int32_t)*slot;
  g->members++;
  g->blocked |= record->reason > GF_OWN_OVERLAP;
  if (base != NULL) {
    record->flags |= GF_OWN_IS_VIEW;
    g->bases += base != g->base;
    g->base = base;
    g->views++;
  }
  g->unordered |= m->lo < g->end && m->lo < m->hi;
  if (m->hi > g->end) g->end = m->hi;
}

static int by_address(const void *a, const void *b) {
  const member *x = a, *y = b;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void find_overlaps(void) {
  int unordered = 0;
  for (int64_t g = 0; g < scratch.groups_len; g++) unordered |= scratch.groups[g].unordered;
  if (!unordered) return;
  qsort(scratch.members, (size_t)scratch.members_len, sizeof *scratch.members, by_address);
  uint64_t end = 0;
  for (int64_t i = 0; i < scratch.members_len; i++) {
    const member *m = &scratch.members[i];
    if (i == 0 || m->group != m[-1].group) end = 0;
    if (m->lo < end && m->lo < m->hi) scratch.groups[m->group].overlap = 1;
    if (m->hi > end) end = m->hi;
  }
}

// Do the members, and their one dead base, explain all users of the storage?
static int judge_group(const group *g) {
  int64_t users = gf_storage_users(g->storage);
  if (users < 0) return GF_OWN_STORAGE;
  users -= g->made;
  if (g->blocked || g->bases > 1 || users != g->members + g->bases) return GF_OWN_SHARED;
  if (g->base != NULL && gf_users(g->base, gf_words.refs_at, gf_words.slot_at) != g->views) return GF_OWN_SHARED;
  return g->overlap ? GF_OWN_OVERLAP : GF_OWN_ADOPTABLE;
}

static void group_all(void *const *objects, gf_own *records, const int32_t *made) {
  clear_table();
  for (int64_t i = 0; i < scratch.members_len; i++) {
    member *m = &scratch.members[i];
    enter(m, objects[m->entry], &records[m->entry], made == NULL ? 0 : made[m->entry]);
  }
  find_overlaps();
  for (int64_t g = 0; g < scratch.groups_len; g++) scratch.groups[g].reason = judge_group(&scratch.groups[g]);
  for (int64_t i = 0; i < scratch.members_len; i++) {
    gf_own *record = &records[scratch.members[i].entry];
    if (record->reason <= GF_OWN_OVERLAP) worsen(record, scratch.groups[scratch.members[i].group].reason);
  }
}

// An object that is an entry twice has more references than expected.
static void find_twins(void *const *objects, int64_t count, int64_t expected, gf_own *records) {
  int made, cleared = 0;
  for (int64_t i = 0; i < count; i++) {
    if (Py_REFCNT((PyObject *)objects[i]) <= expected) continue;
    if (!cleared) clear_table();
    cleared = 1;
    int64_t *first = lookup(objects[i], &made);
    if (made) *first = i;
    else records[i].reason = records[*first].reason = GF_OWN_TWICE;
  }
}

// ---- all of it ----

static int survey_quickly(void *const *objects, int64_t count_, int64_t expected, gf_own *records, const int32_t *made) {
  if (judge_all(objects, count_, records) != 0 || reserve(count_) != 0) return -1;
  for (int64_t i = 0; i < count_; i++)
    if (records[i].reason == GF_OWN_ADOPTABLE || records[i].reason == GF_OWN_LEAF)
      count(objects[i], expected, i, &records[i]);
  find_twins(objects, count_, expected, records);
  if (scratch.members_len > 0) group_all(objects, records, made);
  return 0;
}

// One record as the slow hook tells it: (address, bytes, storage, storage address, storage bytes, device type, device
// index, flags, reason). To Python an adopted output looks foreign.
static int read_record(PyObject *tuple, gf_own *r) {
  unsigned long long address, storage, storage_address;
  long long bytes, storage_bytes;
  if (!PyArg_ParseTuple(tuple, "KLKKLiiii", &address, &bytes, &storage, &storage_address, &storage_bytes, &r->device_type,
                        &r->device_index, &r->flags, &r->reason))
    return -1;
  r->address = address, r->bytes = bytes, r->storage = storage;
  r->storage_address = storage_address, r->storage_bytes = storage_bytes;
  if (storage != 0 && gf_adopted_is((const void *)(uintptr_t)storage, storage_address)) {
    r->flags |= GF_OWN_IS_ADOPTED;
    if (r->reason == GF_OWN_FOREIGN) r->reason = r->flags & GF_OWN_IS_STRIDED ? GF_OWN_STRIDED : GF_OWN_ADOPTABLE;
  }
  return 0;
}

static PyObject *list_of(const int32_t *numbers, int64_t count) {
  PyObject *list = PyList_New(count);
  for (int64_t i = 0; list != NULL && i < count; i++) {
    PyObject *number = PyLong_FromLong(numbers == NULL ? 0 : numbers[i]);
    if (number == NULL) Py_CLEAR(list);
    else PyList_SET_ITEM(list, i, number);
  }
  return list;
}

// Asks Python about all entries at once, through a list that adds one reference to each.
static int survey_slowly(void *const *objects, int64_t count, int64_t expected, gf_own *records, const int32_t *made) {
  PyObject *list = PyList_New(count), *outputs = list_of(made, count), *answer = NULL;
  for (int64_t i = 0; list != NULL && i < count; i++) PyList_SET_ITEM(list, i, Py_NewRef((PyObject *)objects[i]));
  if (list != NULL && outputs != NULL)
    answer = PyObject_CallFunction(gf_own_hooks.slow, "OLO", list, (long long)expected + 1, outputs);
  int rc = answer != NULL && PyList_CheckExact(answer) && PyList_GET_SIZE(answer) == count ? 0 : -1;
  for (int64_t i = 0; rc == 0 && i < count; i++) rc = read_record(PyList_GET_ITEM(answer, i), &records[i]);
  Py_XDECREF(answer);
  Py_XDECREF(outputs);
  Py_XDECREF(list);
  if (rc != 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the slow survey gave no answer");
  return rc;
}

static void answer_all(gf_own *records, int64_t count, int reason) {
  for (int64_t i = 0; i < count; i++) records[i].reason = reason;
}

int gf_survey(void *const *objects, int64_t count, int64_t expected, gf_own *records, const int32_t *made) {
  memset(records, 0, (size_t)count * sizeof *records);
  if (gf_own_hooks.judge == NULL)
    answer_all(records, count, GF_OWN_UNKNOWN);  // nobody has called goflat._ownership.meet()
  else if (gf_is_watched())
    answer_all(records, count, GF_OWN_MODE);
  else if (gf_own_hooks.quick)
    return survey_quickly(objects, count, expected, records, made);
  else
    return survey_slowly(objects, count, expected, records, made);
  return 0;
}

// ---- for Python ----

// Copies the list, so that what Python code does to it meanwhile is of no interest.
static int64_t survey_list(PyObject *list, int64_t expected, gf_own *records, const int32_t *made) {
  Py_ssize_t count = PyList_GET_SIZE(list);
  void **objects = malloc((size_t)(count > 0 ? count : 1) * sizeof *objects);
  if (objects == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) objects[i] = Py_NewRef(PyList_GET_ITEM(list, i));
  int rc = gf_survey(objects, count, expected + 1, records, made);
  int64_t adoptable = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    adoptable += records[i].reason == GF_OWN_ADOPTABLE;
    Py_DECREF((PyObject *)objects[i]);
  }
  free(objects);
  return rc == 0 ? adoptable : -1;
}

int64_t gf_survey_list(uint64_t list, int64_t expected, uint64_t records) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int64_t adoptable = survey_list((PyObject *)(uintptr_t)list, expected, (gf_own *)(uintptr_t)records, NULL);
  if (adoptable < 0) gf_park_error();
  PyGILState_Release(gil);
  return adoptable;
}

// What may be given up is nobody else's still; what is only read lies where it lay.
static int is_as_it_was(const gf_own *then, const gf_own *now) {
  if (then->reason <= GF_OWN_OVERLAP) return memcmp(then, now, sizeof *now) == 0;
  return then->address == now->address && then->bytes == now->bytes && then->storage == now->storage &&
         then->storage_address == now->storage_address;
}

// The number, from 1, of the first entry that is not as it was; 0 if all are.
static int64_t find_changed(PyObject *list, int64_t expected, const gf_own *before, const int32_t *made) {
  Py_ssize_t count = PyList_GET_SIZE(list);
  gf_own *now = malloc((size_t)(count > 0 ? count : 1) * sizeof *now);
  if (now == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  int64_t changed = survey_list(list, expected, now, made) < 0 ? -1 : 0;
  for (Py_ssize_t i = 0; changed == 0 && i < count; i++)
    if (!is_as_it_was(&before[i], &now[i])) changed = i + 1;
  free(now);
  return changed;
}

int64_t gf_changed(uint64_t list, int64_t expected, uint64_t before, uint64_t made) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int64_t changed =
      find_changed((PyObject *)(uintptr_t)list, expected, (const gf_own *)(uintptr_t)before, (const int32_t *)(uintptr_t)made);
  if (changed < 0) gf_park_error();
  PyGILState_Release(gil);
  return changed;
}
