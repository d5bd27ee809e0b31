#include "abi.h"

#include <stdlib.h>

#include "_cgo_export.h" // goflatDLPackRelease, in export.go

// The extents and strides lie behind the struct, so that one free suffices.
static void *make(size_t bytes, int32_t ndim, size_t tensor_at)
{
	char *memory = calloc(1, bytes + 2 * (size_t)ndim * sizeof(int64_t));
	if (!memory)
		return NULL;
	goflat_dl_tensor *t = (goflat_dl_tensor *)(memory + tensor_at);
	t->ndim = ndim;
	t->shape = (int64_t *)(memory + bytes);
	t->strides = t->shape + ndim;
	return memory;
}

static void delete_versioned(goflat_dl_versioned *managed)
{
	goflatDLPackRelease((uintptr_t)managed->manager);
	free(managed);
}

static void delete_unversioned(goflat_dl_unversioned *managed)
{
	goflatDLPackRelease((uintptr_t)managed->manager);
	free(managed);
}

goflat_dl_versioned *goflat_dl_new_versioned(uintptr_t handle, int32_t ndim)
{
	goflat_dl_versioned *m = make(sizeof *m, ndim, offsetof(goflat_dl_versioned, tensor));
	if (!m)
		return NULL;
	m->major = GOFLAT_DL_MAJOR;
	m->minor = GOFLAT_DL_MINOR;
	m->manager = (void *)handle;
	m->deleter = delete_versioned;
	return m;
}

goflat_dl_unversioned *goflat_dl_new_unversioned(uintptr_t handle, int32_t ndim)
{
	goflat_dl_unversioned *m = make(sizeof *m, ndim, offsetof(goflat_dl_unversioned, tensor));
	if (!m)
		return NULL;
	m->manager = (void *)handle;
	m->deleter = delete_unversioned;
	return m;
}

void goflat_dl_delete_versioned(goflat_dl_versioned *managed)
{
	if (managed->deleter)
		managed->deleter(managed);
}

void goflat_dl_delete_unversioned(goflat_dl_unversioned *managed)
{
	if (managed->deleter)
		managed->deleter(managed);
}
