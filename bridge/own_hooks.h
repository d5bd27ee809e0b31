// Internal to the ownership checks and adopted outputs: what they ask of Python, handed over by goflat._ownership.
#ifndef GOFLAT_OWN_HOOKS_H
#define GOFLAT_OWN_HOOKS_H

#include "collect.h"

typedef struct {
  int quick;          // counts are read in place, and tensors made without Python objects
  PyObject *judge;    // judge(tensor) -> True if its data is all there is to it
  PyObject *slow;     // slow(tensors, expected) -> list of records, see read_record in own.c
  PyObject *hold;     // hold(tensor) -> (a tensor over all of the same storage, storage, its address, its bytes)
  PyObject *over;     // over(like, source, offset in bytes, shape) -> tensor of like's dtype over source's storage
  PyObject *import;   // import(capsule named "dltensor") -> tensor
  PyObject *storage;  // storage(tensor) -> identity of its storage
} gf_own_hooks_t;
extern gf_own_hooks_t gf_own_hooks;

void gf_park_error(void);  // moves the pending exception to where gf_take_exception finds it

#endif
