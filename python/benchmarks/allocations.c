// Counts what a process asks malloc for. Loaded ahead of libc (LD_PRELOAD) by allocations.py, which
// reads the two counters. glibc only: the real functions are called by its own names for them.
#include <errno.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

long goflat_bench_calls;
long goflat_bench_bytes;

static void count(size_t bytes) {
	__atomic_fetch_add(&goflat_bench_calls, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&goflat_bench_bytes, (long)bytes, __ATOMIC_RELAXED);
}

void *malloc(size_t bytes) {
	count(bytes);
	return __libc_malloc(bytes);
}

void *calloc(size_t items, size_t bytes) {
	count(items * bytes);
	return __libc_calloc(items, bytes);
}

void *realloc(void *old, size_t bytes) {
	count(bytes);
	return __libc_realloc(old, bytes);
}

void *memalign(size_t boundary, size_t bytes) {
	count(bytes);
	return __libc_memalign(boundary, bytes);
}

void *aligned_alloc(size_t boundary, size_t bytes) {
	count(bytes);
	return __libc_memalign(boundary, bytes);
}

int posix_memalign(void **made, size_t boundary, size_t bytes) {
	count(bytes);
	void *found = __libc_memalign(boundary, bytes);
	if (found == NULL)
		return ENOMEM;
	*made = found;
	return 0;
}
