// Tells in about two nanoseconds whether a torch.Tensor is plain data.
//
// torch keeps two words in every TensorImpl that say all we need: the dispatch key set (conj, neg, sparse, quantised,
// fake, functional, zero, inference, functorch, device) and the pointer to autograd state (requires_grad, tangents,
// hooks, being a view; NULL for a tensor without any of these). Neither has a stable offset, so gf_learn_torch finds both by
// looking for known values in tensors made for the purpose. If it does not find each of them exactly once, every
// tensor is looked at through Python attributes instead, which is slower and equally right.
#include "collect.h"

enum { GF_OBJECT_WORDS = 8, GF_IMPL_WORDS = 23, GF_KNOWN = 8 };

typedef struct {
  uint64_t keys[GF_KNOWN];
  int len;
} key_sets;

static struct {
  int ready;
  int impl_at;   // word of the Python object that points to the TensorImpl
  int keys_at;   // words of the TensorImpl
  int state_at;
  key_sets plain;     // of entries that the resolve hook found plain
  key_sets writable;  // of outputs that the refuse_out hook let pass
} torch_words;

static const uint64_t *impl_of(PyObject *tensor, int at) { return ((const uint64_t *const *)tensor)[at]; }

void *gf_tensor_handle(PyObject *tensor) { return (uint64_t *)tensor + torch_words.impl_at; }

static int knows(const key_sets *sets, uint64_t keys) {
  for (int i = 0; i < sets->len; i++)
    if (sets->keys[i] == keys) return 1;
  return 0;
}

static void remember(key_sets *sets, PyObject *tensor) {
  if (!torch_words.ready || sets->len == GF_KNOWN) return;
  uint64_t keys = impl_of(tensor, torch_words.impl_at)[torch_words.keys_at];
  if (!knows(sets, keys)) sets->keys[sets->len++] = keys;
}

void gf_remember_plain(PyObject *tensor) { remember(&torch_words.plain, tensor); }
void gf_remember_writable(PyObject *out) { remember(&torch_words.writable, out); }

// Does a callable without arguments return true? No callable: no.
static int says_yes(PyObject *callable) {
  PyObject *answer = callable == NULL ? NULL : PyObject_CallNoArgs(callable);
  int yes = answer != NULL && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  PyErr_Clear();
  return yes;
}

// What autograd state means during this call, found out at the first tensor that has some.
static int autograd_mode(gf_job *job) {
  if (job->autograd != GF_AUTOGRAD_UNKNOWN) return job->autograd;
  PyObject *level = gf_hooks.forward_ad == NULL ? NULL : PyDict_GetItemString(gf_hooks.forward_ad, "_current_level");
  if (level == NULL || PyLong_AsLong(level) >= 0)
    job->autograd = GF_AUTOGRAD_DUALS;
  else if (job->flags & GF_FLAG_NO_GRAD || !says_yes(gf_hooks.is_grad_enabled))
    job->autograd = GF_AUTOGRAD_OFF;
  else
    job->autograd = GF_AUTOGRAD_ON;
  return job->autograd;
}

static int requires_grad(PyObject *tensor) {
  static PyObject *name;
  if (name == NULL) name = PyUnicode_InternFromString("requires_grad");
  PyObject *value = name == NULL ? NULL : PyObject_GetAttr(tensor, name);
  int yes = value != Py_False;
  Py_XDECREF(value);
  PyErr_Clear();
  return yes;
}

static int is_among(const key_sets *sets, gf_job *job, PyObject *tensor) {
  if (!torch_words.ready) return 0;
  const uint64_t *impl = impl_of(tensor, torch_words.impl_at);
  if (!knows(sets, impl[torch_words.keys_at])) return 0;
  if (impl[torch_words.state_at] == 0) return 1;
  int mode = autograd_mode(job);
  if (mode != GF_AUTOGRAD_ON) return mode == GF_AUTOGRAD_OFF || mode == GF_AUTOGRAD_RECORDING;
  if (!requires_grad(tensor)) return 1;
  if (job->flags & GF_FLAG_RECORD) job->autograd = GF_AUTOGRAD_RECORDING;
  return job->autograd == GF_AUTOGRAD_RECORDING;
}

int gf_is_plain(gf_job *job, PyObject *tensor) { return is_among(&torch_words.plain, job, tensor); }
int gf_is_writable(gf_job *job, PyObject *out) { return is_among(&torch_words.writable, job, out); }

int gf_is_watched(void) {
  int quick = gf_quick_watched();
  if (quick >= 0) return quick;
  Py_ssize_t count = gf_hooks.watchers == NULL ? 0 : PyTuple_GET_SIZE(gf_hooks.watchers);
  for (Py_ssize_t i = 0; i < count; i++)
    if (says_yes(PyTuple_GET_ITEM(gf_hooks.watchers, i))) return 1;
  return 0;
}

// A probe: (tensor, address of its TensorImpl, raw key set, 1 if it has autograd state).
typedef struct {
  PyObject *tensor;
  unsigned long long impl, keys;
  int state;
} probe;

static int parse_probe(PyObject *list, Py_ssize_t i, probe *p) {
  return PyArg_ParseTuple(PyList_GET_ITEM(list, i), "OKKp", &p->tensor, &p->impl, &p->keys, &p->state);
}

enum { WORD_IMPL, WORD_KEYS, WORD_STATE };

static int matches(int what, const probe *p, int word) {
  if (what == WORD_IMPL) return ((const uint64_t *)p->tensor)[word] == p->impl;
  uint64_t value = ((const uint64_t *)(uintptr_t)p->impl)[word];
  return what == WORD_KEYS ? value == p->keys : (value != 0) == p->state;
}

// The one word that matches in every probe, or -1.
static int find_word(int what, int words, PyObject *list) {
  int found = -1;
  for (int word = what == WORD_IMPL ? 2 : 0; word < words; word++) {
    int all = 1;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(list); i++) {
      probe p;
      if (!parse_probe(list, i, &p)) return -1;
      all = matches(what, &p, word);
    }
    if (all && found >= 0) return -1;
    if (all) found = word;
  }
  return found;
}

// The Python object of a tensor has at least this many bytes; never read past them.
static int object_words(PyObject *list) {
  Py_ssize_t bytes = Py_TYPE(PyTuple_GET_ITEM(PyList_GET_ITEM(list, 0), 0))->tp_basicsize;
  return bytes / 8 < GF_OBJECT_WORDS ? (int)(bytes / 8) : GF_OBJECT_WORDS;
}

static int learn(PyObject *list, PyObject *plain) {
  torch_words.ready = torch_words.plain.len = torch_words.writable.len = 0;
  torch_words.impl_at = find_word(WORD_IMPL, object_words(list), list);
  torch_words.keys_at = find_word(WORD_KEYS, GF_IMPL_WORDS, list);
  // Autograd state comes before the key set, with which a TensorImpl ends: what lies behind it is anybody's.
  torch_words.state_at = find_word(WORD_STATE, torch_words.keys_at, list);
  PyErr_Clear();
  torch_words.ready = torch_words.impl_at >= 0 && torch_words.keys_at >= 0 && torch_words.state_at >= 0;
  if (!torch_words.ready) return 0;
  return 1 + gf_learn_shims(plain);
}

int gf_learn_torch(uint64_t probes, uint64_t plain) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int learnt = learn((PyObject *)probes, (PyObject *)plain);
  PyGILState_Release(gil);
  return learnt;
}

int gf_learn_impl_words(uint64_t probes, uint64_t elsewhere) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int learnt = torch_words.ready && gf_learn_impl((PyObject *)probes, (PyObject *)elsewhere);
  PyGILState_Release(gil);
  return learnt;
}
