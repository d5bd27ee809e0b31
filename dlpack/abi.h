// abi.h: the structs of DLPack 1.x that the package reads and writes, after the specification;
// no header of others is needed. Offsets are asserted: a drift must not compile. The file is the
// package's own, since the go command only sees changes of headers in the same folder.
#ifndef GOFLAT_DLPACK_ABI_H
#define GOFLAT_DLPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
	GOFLAT_DL_MAJOR = 1,
	GOFLAT_DL_MINOR = 1,
	GOFLAT_DL_READ_ONLY = 1, // flags
	GOFLAT_DL_PADDED = 4,    // elements of less than a byte take one each
};

typedef struct {
	void *data;
	int32_t device_type, device_index;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape;
	int64_t *strides; // in elements; NULL: contiguous
	uint64_t byte_offset;
} goflat_dl_tensor;

// In capsules named "dltensor".
typedef struct goflat_dl_unversioned {
	goflat_dl_tensor tensor;
	void *manager;
	void (*deleter)(struct goflat_dl_unversioned *self);
} goflat_dl_unversioned;

// In capsules named "dltensor_versioned".
typedef struct goflat_dl_versioned {
	uint32_t major, minor;
	void *manager;
	void (*deleter)(struct goflat_dl_versioned *self);
	uint64_t flags;
	goflat_dl_tensor tensor;
} goflat_dl_versioned;

#define GOFLAT_AT(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")
GOFLAT_AT(goflat_dl_tensor, device_type, 8);
GOFLAT_AT(goflat_dl_tensor, ndim, 16);
GOFLAT_AT(goflat_dl_tensor, code, 20);
GOFLAT_AT(goflat_dl_tensor, lanes, 22);
GOFLAT_AT(goflat_dl_tensor, shape, 24);
GOFLAT_AT(goflat_dl_tensor, strides, 32);
GOFLAT_AT(goflat_dl_tensor, byte_offset, 40);
GOFLAT_AT(goflat_dl_unversioned, manager, 48);
GOFLAT_AT(goflat_dl_unversioned, deleter, 56);
GOFLAT_AT(goflat_dl_versioned, manager, 8);
GOFLAT_AT(goflat_dl_versioned, deleter, 16);
GOFLAT_AT(goflat_dl_versioned, flags, 24);
GOFLAT_AT(goflat_dl_versioned, tensor, 32);

// goflat_dl_new_versioned makes a struct with room for ndim extents and strides behind it, whose
// deleter tells Go the handle and frees it. NULL if there is no memory. goflat_dl_new_unversioned
// does the same.
goflat_dl_versioned *goflat_dl_new_versioned(uintptr_t handle, int32_t ndim);
goflat_dl_unversioned *goflat_dl_new_unversioned(uintptr_t handle, int32_t ndim);

// goflat_dl_delete_versioned calls the deleter, if there is one; goflat_dl_delete_unversioned too.
void goflat_dl_delete_versioned(goflat_dl_versioned *managed);
void goflat_dl_delete_unversioned(goflat_dl_unversioned *managed);

#endif
