// The part of the DLPack 1.x ABI that goflat reads, declared here so that building needs no third-party header.
// Source of the layouts: the DLPack specification, versions 1.0 (versioned tensors), 1.2 and 1.3 (exchange API).
// Offsets are asserted: a layout that drifts must fail to compile, not corrupt memory.
#ifndef GOFLAT_DLPACK_ABI_H
#define GOFLAT_DLPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { GF_DL_CPU = 1, GF_DL_CUDA = 2 };        // device types
enum { GF_DL_MAJOR = 1, GF_DL_MAX_HOPS = 8 };  // the ABI generation we speak; longest prev_api chain we follow

typedef struct {
  int32_t type;
  int32_t index;
} gf_dl_device;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} gf_dl_dtype;

typedef struct {
  void *data;
  gf_dl_device device;
  int32_t ndim;
  gf_dl_dtype dtype;
  int64_t *shape;
  int64_t *strides;  // in elements; NULL means row-major without gaps
  uint64_t byte_offset;
} gf_dl_tensor;

typedef struct {
  uint32_t major;
  uint32_t minor;
} gf_dl_version;

// Carried by capsules named "dltensor". The consumer calls deleter(self) once, if it is not NULL.
typedef struct gf_dl_managed {
  gf_dl_tensor tensor;
  void *manager;
  void (*deleter)(struct gf_dl_managed *self);
} gf_dl_managed;

// Carried by capsules named "dltensor_versioned".
typedef struct gf_dl_managed_versioned {
  gf_dl_version version;
  void *manager;
  void (*deleter)(struct gf_dl_managed_versioned *self);
  uint64_t flags;
  gf_dl_tensor tensor;
} gf_dl_managed_versioned;

typedef struct gf_dl_header {
  gf_dl_version version;
  struct gf_dl_header *prev;  // an older table of the same type, or NULL
} gf_dl_header;

// What a type offers under __dlpack_c_exchange_api__. All functions return 0, or -1 with a Python exception set.
typedef struct {
  gf_dl_header header;
  int (*allocate)(gf_dl_tensor *prototype, gf_dl_managed_versioned **out, void *error_ctx,
                  void (*set_error)(void *error_ctx, const char *kind, const char *message));
  int (*owned_from_object)(void *object, gf_dl_managed_versioned **out);
  int (*object_from_owned)(gf_dl_managed_versioned *tensor, void **out_object);  // takes over the tensor
  int (*borrow_from_object)(void *object, gf_dl_tensor *out);                    // may be NULL
  int (*current_stream)(int32_t device_type, int32_t device_index, void **out_stream);
} gf_dl_exchange;

#define GF_OFFSET(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")
#define GF_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed its size")
GF_OFFSET(gf_dl_tensor, device, 8);
GF_OFFSET(gf_dl_tensor, ndim, 16);
GF_OFFSET(gf_dl_tensor, dtype, 20);
GF_OFFSET(gf_dl_tensor, shape, 24);
GF_OFFSET(gf_dl_tensor, strides, 32);
GF_OFFSET(gf_dl_tensor, byte_offset, 40);
GF_SIZE(gf_dl_tensor, 48);
GF_OFFSET(gf_dl_managed, manager, 48);
GF_OFFSET(gf_dl_managed, deleter, 56);
GF_SIZE(gf_dl_managed, 64);
GF_OFFSET(gf_dl_managed_versioned, manager, 8);
GF_OFFSET(gf_dl_managed_versioned, deleter, 16);
GF_OFFSET(gf_dl_managed_versioned, flags, 24);
GF_OFFSET(gf_dl_managed_versioned, tensor, 32);
GF_SIZE(gf_dl_managed_versioned, 80);
GF_OFFSET(gf_dl_exchange, allocate, 16);
GF_OFFSET(gf_dl_exchange, borrow_from_object, 40);
GF_OFFSET(gf_dl_exchange, current_stream, 48);
GF_SIZE(gf_dl_exchange, 56);

#endif
