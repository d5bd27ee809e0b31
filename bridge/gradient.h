// What backward of a join calls, once per output: as a Python function in C, since it may run on any of autograd's
// threads and takes less time than entering Go does.
#ifndef GOFLAT_GRADIENT_H
#define GOFLAT_GRADIENT_H

#include <stdint.h>

// gf_gradient_cutter appends to the list:
//
//	cut(gradient, rows, dim) -> tuple of tensors of so many rows each, one behind the other along dim, all of them over
//	                            the memory of gradient; None where torch has to cut it
//
// It returns 1, or 0 where there is no memory for it.
int gf_gradient_cutter(uint64_t list);

#endif
