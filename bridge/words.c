// Finds out where this torch keeps what the ownership checks read: counts, storages, Python objects.
//
// Asked through Python attributes these cost 140 to 170 ns each, and asking for a storage makes a Python object that
// then counts as one of its users. So they are read in place. No offset is stable between versions: each is looked for
// in objects made for the purpose, whose values Python has told, and has to be found exactly once. Whatever was found
// is then tried by goflat._ownership on tensors in known states before anything relies on it.
#include "words.h"

gf_words_t gf_words;

// Objects of every torch since 2.6 have at least this many words. Views have an autograd state larger than others'.
enum { IMPL_WORDS = 23, STORAGE_WORDS = 11, STATE_WORDS = 30, OBJECT_WORDS = 8 };
enum { MAX_PROBES = 32, MAX_COLUMNS = 8 };

typedef enum { EQUAL, LOW_HALF, POINTER, IS_SET, SAME_AS_DATA } meaning;

// One list of probes: addresses of objects, and what Python says about each.
typedef struct {
  int len;
  const void *objects[MAX_PROBES];
  uint64_t columns[MAX_COLUMNS][MAX_PROBES];
} table;

static int read_probe(PyObject *tuple, table *t) {
  if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) > MAX_COLUMNS + 1) return -1;
  for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(tuple); c++) {
    uint64_t value = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(tuple, c));
    if (c == 0) t->objects[t->len] = (const void *)(uintptr_t)value;
    else t->columns[c - 1][t->len] = value;
  }
  t->len++;
  return PyErr_Occurred() ? -1 : 0;
}

static int read_table(PyObject *probes, const char *name, table *t) {
  PyObject *list = PyDict_GetItemString(probes, name);
  *t = (table){0};
  if (list == NULL || !PyList_CheckExact(list) || PyList_GET_SIZE(list) > MAX_PROBES) return -1;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
    if (read_probe(PyList_GET_ITEM(list, i), t) != 0) return -1;
  return 0;
}

static int agrees(meaning m, uint64_t word, uint64_t want, uint64_t data) {
  switch (m) {
    case EQUAL: return word == want;
    case LOW_HALF: return (uint32_t)word == want;
    case POINTER: return (word & ~(uint64_t)7) == want;
    case IS_SET: return (word != 0) == (want != 0);
    case SAME_AS_DATA: return (word == data) == (want != 0);
  }
  return 0;
}

// The one word in [from, to) that agrees with a column in every probe, or -1. The column that data stands in is
// only needed for SAME_AS_DATA.
static int find(const table *t, meaning m, int column, int from, int to, int data_column) {
  int found = -1;
  for (int word = from; word < to; word++) {
    int all = t->len > 0;
    for (int i = 0; all && i < t->len; i++)
      all = agrees(m, gf_word(t->objects[i], word), t->columns[column][i], t->columns[data_column][i]);
    if (all && found >= 0) return -1;
    if (all) found = word;
  }
  return found;
}

// The one byte that holds a column of truth values, among words whose lower half looks like truth values in every
// probe; what follows them up to the next word is padding.
static int find_byte(const table *t, int column, int words) {
  int found = -1;
  for (int byte = 0; byte < words * 8; byte++) {
    if (byte % 8 > 3) continue;
    int all = t->len > 0;
    for (int i = 0; all && i < t->len; i++)
      all = (gf_word(t->objects[i], byte / 8) & 0xfefefefe) == 0 &&
            ((const uint8_t *)t->objects[i])[byte] == t->columns[column][i];
    if (all && found >= 0) return -1;
    if (all) found = byte;
  }
  return found;
}

// Columns of the tables that goflat._ownership makes.
enum { OBJECT_IMPL };
enum { IMPL_REFS, IMPL_OBJECT, IMPL_STORAGE, IMPL_STATE, IMPL_KEYS };
enum { STORAGE_REFS, STORAGE_OBJECT, STORAGE_DATA, STORAGE_BYTES, STORAGE_RESIZABLE, STORAGE_RAW, STORAGE_USERS };
enum { VIEW_BASE };

static int learn_tensors(PyObject *probes) {
  gf_words_t *w = &gf_words;
  table objects, impls;
  if (read_table(probes, "objects", &objects) != 0 || read_table(probes, "tensors", &impls) != 0) return 0;
  Py_ssize_t bytes = objects.len == 0 ? 0 : Py_TYPE((PyObject *)objects.objects[0])->tp_basicsize;
  w->impl_at = find(&objects, EQUAL, OBJECT_IMPL, 2, bytes / 8 < OBJECT_WORDS ? (int)(bytes / 8) : OBJECT_WORDS, 0);
  w->keys_at = find(&impls, EQUAL, IMPL_KEYS, 0, IMPL_WORDS, 0);
  // a TensorImpl ends with its key set: what lies behind is anybody's
  w->refs_at = find(&impls, LOW_HALF, IMPL_REFS, 0, w->keys_at, 0);
  w->slot_at = find(&impls, POINTER, IMPL_OBJECT, 0, w->keys_at, 0);
  w->storage_at = find(&impls, EQUAL, IMPL_STORAGE, 0, w->keys_at, 0);
  w->state_at = find(&impls, IS_SET, IMPL_STATE, 0, w->keys_at, 0);
  return w->impl_at >= 0 && w->keys_at >= 0 && w->refs_at >= 0 && w->slot_at >= 0 && w->storage_at >= 0 && w->state_at >= 0;
}

// Is the number of users right in every probe, for one of the two ways in which torch keeps Python objects alive?
static int learn_preserving(const table *t) {
  int right[2] = {1, 1};
  for (int way = 0; way < 2; way++) {
    gf_words.preserving = way;
    for (int i = 0; i < t->len; i++) right[way] &= gf_storage_users(t->objects[i]) == (int64_t)t->columns[STORAGE_USERS][i];
  }
  gf_words.preserving = right[1];
  return right[0] != right[1];
}

static int learn_storages(PyObject *probes) {
  gf_words_t *w = &gf_words;
  table t;
  if (read_table(probes, "storages", &t) != 0) return 0;
  w->storage_refs_at = find(&t, LOW_HALF, STORAGE_REFS, 0, STORAGE_WORDS, 0);
  w->storage_slot_at = find(&t, POINTER, STORAGE_OBJECT, 0, STORAGE_WORDS, 0);
  w->data_at = find(&t, EQUAL, STORAGE_DATA, 0, STORAGE_WORDS, 0);
  w->context_at = find(&t, SAME_AS_DATA, STORAGE_RAW, 0, STORAGE_WORDS, STORAGE_DATA);
  w->bytes_at = find(&t, EQUAL, STORAGE_BYTES, 0, STORAGE_WORDS, 0);
  w->resizable_at = find_byte(&t, STORAGE_RESIZABLE, STORAGE_WORDS);
  return w->storage_refs_at >= 0 && w->storage_slot_at >= 0 && w->data_at >= 0 && w->context_at >= 0 && w->bytes_at >= 0 &&
         w->resizable_at >= 0 && learn_preserving(&t);
}

// Views are probed by their autograd states, whose first words, the tables of virtual functions, must be one.
static int learn_views(PyObject *probes) {
  table t;
  if (read_table(probes, "views", &t) != 0 || t.len == 0) return 0;
  for (int i = 0; i < t.len; i++) {
    t.objects[i] = gf_pointer(t.objects[i], gf_words.state_at);
    if (t.objects[i] == NULL || gf_word(t.objects[i], 0) != gf_word(t.objects[0], 0)) return 0;
  }
  gf_words.view_table = gf_word(t.objects[0], 0);
  gf_words.base_at = find(&t, EQUAL, VIEW_BASE, 1, STATE_WORDS, 0);
  return gf_words.base_at >= 0;
}

int gf_learn_words(PyObject *probes) {
  gf_words = (gf_words_t){0};
  int learnt = learn_tensors(probes) && learn_storages(probes) && learn_views(probes);
  PyErr_Clear();
  return gf_words.ready = learnt;
}
