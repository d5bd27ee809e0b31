// Internal to the ownership checks: where this torch keeps its reference counts (words.c). Everything needs the GIL.
#ifndef GOFLAT_WORDS_H
#define GOFLAT_WORDS_H

#include "collect.h"

// Positions are in 8-byte words from the start of the object; resizable_at is in bytes.
typedef struct {
  int ready;
  int impl_at;                                         // Python tensor: pointer to its TensorImpl
  int refs_at, slot_at, storage_at, state_at, keys_at;  // TensorImpl: count, Python object, StorageImpl, autograd, dispatch keys
  int base_at;                                         // autograd state of a view: TensorImpl of its base
  uint64_t view_table;                                 // first word of such a state, which tells it from others
  int storage_refs_at, storage_slot_at, data_at, context_at, bytes_at, resizable_at;  // StorageImpl
  int preserving;  // since torch 2.10 a Python object, once made, lives as long as its C++ object and counts as its user
} gf_words_t;
extern gf_words_t gf_words;

int gf_learn_words(PyObject *probes);  // 1 if every word was found exactly once

static inline uint64_t gf_word(const void *object, int at) { return __atomic_load_n((const uint64_t *)object + at, __ATOMIC_RELAXED); }
static inline const void *gf_pointer(const void *object, int at) { return (const void *)(uintptr_t)gf_word(object, at); }
static inline uint32_t gf_refs(const void *object, int at) { return (uint32_t)gf_word(object, at); }

// How many C++ references a TensorImpl or StorageImpl has, its own Python object not counted; -1 if somebody holds that.
static inline int64_t gf_users(const void *object, int refs_at, int slot_at) {
  uint64_t slot = gf_word(object, slot_at);
  int64_t refs = gf_refs(object, refs_at);
  PyObject *python = (PyObject *)(uintptr_t)(slot & ~(uint64_t)7);
  if (python == NULL) return refs;
  if (Py_REFCNT(python) != 1) return -1;
  if (gf_words.preserving) return refs > 1 ? refs - 1 : -1;
  return slot & 7 ? refs : -1;  // a mark in the low bits: the C++ object owns the Python one
}
static inline int64_t gf_storage_users(const void *storage) {
  return gf_users(storage, gf_words.storage_refs_at, gf_words.storage_slot_at);
}
static inline int gf_is_resizable(const void *storage) { return ((const uint8_t *)storage)[gf_words.resizable_at] != 0; }

#endif
