// collect_stress.c: many threads play torch with gpu/collect*.c at once, and a last one reads its figures. Linked
// against the fake driver; ends with 0 if all segments were disjoint and nothing is left.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collect.h"

enum { THREADS = 6, ROUNDS = 60, SEGMENTS = 12, UNIT = 2 << 20 };

static uintptr_t context;
static volatile int running = THREADS;

static void fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

// own marks the ends of a segment, and check finds the marks again: nobody else has it.
static void own(char *at, size_t bytes, int mark)
{
	at[0] = at[bytes - 1] = (char)mark;
}

static void check(const char *at, size_t bytes, int mark)
{
	if (at[0] != (char)mark || at[bytes - 1] != (char)mark)
		fail("a segment has two owners");
}

static void round_of(int mark, unsigned *seed)
{
	void *at[SEGMENTS];
	size_t bytes[SEGMENTS];
	int64_t id;
	if (goflat_collect_begin(0, context, (uint64_t)1 << 34, &id).code != CUDA_SUCCESS)
		fail("no range");
	for (int i = 0; i < SEGMENTS; i++) {
		bytes[i] = (size_t)UNIT << rand_r(seed) % 4;
		at[i] = goflat_collect_alloc(bytes[i], 0, NULL);
		if (!at[i])
			fail("no segment");
		own(at[i], bytes[i], mark);
	}
	uint64_t lo = (uint64_t)at[3], hi = lo + bytes[3];
	goflat_collect_end(id);
	if (!goflat_collect_claim(lo, hi))
		fail("no claim");
	goflat_collect_keep(rand_r(seed) % 2);
	for (int i = 0; i < SEGMENTS; i++) {
		check(at[i], bytes[i], mark);
		goflat_collect_free(at[i], bytes[i], 0, NULL);
	}
	check(at[3], bytes[3], mark);
	goflat_collect_unclaim(lo, hi);
}

static void *play(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number;
	for (int i = 0; i < ROUNDS; i++)
		round_of((int)(uintptr_t)number, &seed);
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void *watch(void *nothing)
{
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST)) {
		goflat_collect_count c = goflat_collect_bytes(0);
		if (c.free + c.segments > c.mapped)
			fail("more in use than mapped");
		goflat_collect_trim(0);
	}
	return nothing;
}

int main(void)
{
	pthread_t threads[THREADS + 1];
	CUcontext primary;
	if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS)
		fail("no driver");
	context = (uintptr_t)primary;
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, play, (void *)(i + 1));
	pthread_create(&threads[THREADS], NULL, watch, NULL);
	for (int i = 0; i <= THREADS; i++)
		pthread_join(threads[i], NULL);
	goflat_collect_trim(0);
	if (goflat_collect_bytes(0).mapped)
		fail("memory is left");
	return 0;
}
