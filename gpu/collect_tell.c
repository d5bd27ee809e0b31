// collect_tell.c: what lies in ranges, and what is free.
#include "collect_map.h"
#include "collect_state.h"

int goflat_collect_idle(int64_t id)
{
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range(id);
	int idle = !r || goflat_range_idle(r);
	pthread_mutex_unlock(&goflat_state.lock);
	return idle;
}

// note writes a span if there is room for it, and counts it.
static void note(goflat_span span, goflat_span *spans, size_t max, size_t *n)
{
	if (*n < max)
		spans[*n] = span;
	++*n;
}

// free_in notes what is free of mapped memory [lo, hi).
static void free_in(const goflat_range *r, uint64_t lo, uint64_t hi, goflat_span *spans, size_t max, size_t *n)
{
	goflat_span busy;
	while (lo < hi && goflat_range_busy(r, lo, &busy) && busy.lo < hi) {
		if (busy.lo > lo)
			note((goflat_span){lo, busy.lo}, spans, max, n);
		lo = busy.hi;
	}
	if (lo < hi)
		note((goflat_span){lo, hi}, spans, max, n);
}

static size_t room(goflat_range *r, goflat_span *spans, size_t max)
{
	size_t n = 0;
	for (size_t i = 0; i < r->chunks.len;) {
		uint64_t lo = r->chunks.at[i].lo, hi = goflat_range_mapped(r, lo);
		free_in(r, lo, hi, spans, max, &n);
		i = goflat_spans_after(&r->chunks, hi);
	}
	return n;
}

// make_ready prepares a closed range's free memory for work on a stream.
static int make_ready(goflat_range *r, uintptr_t stream)
{
	if (r->open || !goflat_map_settle(r, stream))
		return 0;
	goflat_map_cover(r, goflat_range_used(r), goflat_supply_end(r, goflat_range_used(r)));
	goflat_streams_add(&r->users, stream);
	return 1;
}

size_t goflat_collect_room(int64_t id, uintptr_t stream, int prepare_it, goflat_span *spans, size_t max)
{
	size_t n = 0;
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range(id);
	if (r && !goflat_state.forked && (!prepare_it || make_ready(r, stream)))
		n = room(r, spans, max);
	pthread_mutex_unlock(&goflat_state.lock);
	return n;
}

size_t goflat_collect_claims(int64_t id, goflat_span *spans, size_t max)
{
	size_t n = 0;
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range(id);
	for (size_t i = 0; r && i < r->claims.len; i++)
		note(r->claims.at[i], spans, max, &n);
	pthread_mutex_unlock(&goflat_state.lock);
	return n;
}

int goflat_collect_range(uint64_t address, int64_t *id, uint64_t *lo, uint64_t *hi)
{
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range_at(address);
	int found = r && r->chunks.len;
	if (found) {
		*id = r->id;
		*lo = r->chunks.at[0].lo;
		*hi = r->chunks.at[r->chunks.len - 1].hi;
	}
	pthread_mutex_unlock(&goflat_state.lock);
	return found;
}

goflat_collect_count goflat_collect_bytes(int device)
{
	goflat_collect_count c = {0, 0, 0};
	pthread_mutex_lock(&goflat_state.lock);
	for (goflat_range *r = goflat_state.ranges; r; r = r->next) {
		if (r->device != device)
			continue;
		goflat_span busy;
		for (size_t i = 0; i < r->chunks.len; i++) {
			goflat_span chunk = r->chunks.at[i];
			c.mapped += chunk.hi - chunk.lo;
			if (!goflat_range_busy(r, chunk.lo, &busy) || busy.lo >= chunk.hi)
				c.free += chunk.hi - chunk.lo;
		}
		c.segments += goflat_spans_bytes(&r->segments);
	}
	pthread_mutex_unlock(&goflat_state.lock);
	return c;
}
