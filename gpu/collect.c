#define _GNU_SOURCE
#include "collect.h"

#include <pthread.h>

#include "collect_map.h"

// Slack behind the last segment: free room for in-place plans. Half of what is used, and
// small jobs move each byte once, in one launch; of large ones an eighth, with which they
// seldom move one twice. Adr 11 has the numbers.
static const uint64_t least_slack = (uint64_t)4 << 20, most_half = (uint64_t)64 << 20, most_slack = (uint64_t)512 << 20;

// So that there are few mapping calls, as much is mapped as the device's last context used,
// or at first so much, but no more than that ahead. Beyond, what is mapped doubles.
static const uint64_t first_step = (uint64_t)32 << 20, most_ahead = (uint64_t)96 << 20;
static const uint64_t least_step = (uint64_t)8 << 20, most_step = (uint64_t)64 << 20;

enum { max_devices = 128 };

// A canary is addresses without memory that torch caches as a segment.
typedef struct {
	uint64_t lo; // reserved on first use, kept
	int armed;
} canary;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static int forked; // a child has the parent's addresses but not its device memory
static goflat_range *ranges;
static int64_t last_id;
static canary canaries[max_devices];
static int pressed[max_devices];
static struct {
	uintptr_t context;
	uint64_t bytes; // of a range; 0: no range yet
} homes[max_devices];
static uint64_t expected[max_devices]; // bytes of the last context, with slack; 0 if unknown

static __thread int64_t selected[max_devices]; // ids of ranges
static __thread int keeping;
static __thread int arming; // a device + 1

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	forked = 1;
	pthread_mutex_unlock(&lock);
}

static void prepare(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

static int known(int device)
{
	return device >= 0 && device < max_devices;
}

static goflat_range *range_of(int64_t id)
{
	for (goflat_range *r = ranges; r; r = r->next)
		if (r->id == id)
			return r;
	return NULL;
}

static goflat_range *range_at(uint64_t address)
{
	for (goflat_range *r = ranges; r; r = r->next)
		if (address >= r->lo && address < r->hi)
			return r;
	return NULL;
}

// drop_unused gives the addresses of ranges back that have neither content nor memory, but
// for so many.
static void drop_unused(int device, int keep)
{
	for (goflat_range **at = &ranges; *at;) {
		goflat_range *r = *at, *next = r->next;
		int unused = r->device == device && goflat_range_idle(r) && !r->chunks.len;
		if (unused && keep-- <= 0 && goflat_map_release(r))
			*at = next;
		else
			at = &r->next;
	}
}

// trim gives memory back. One range without memory stays, which spares the next context a
// reservation.
static void trim(int device)
{
	for (goflat_range *r = ranges; r; r = r->next)
		if (r->device == device)
			goflat_map_trim(r);
	drop_unused(device, 1);
}

static uint64_t within(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

// slack_end is up to where a range in use should be mapped at least.
static uint64_t slack_end(const goflat_range *r, uint64_t used)
{
	uint64_t bytes = used - r->lo, slack = within(bytes / 2, least_slack, most_half);
	uint64_t end = goflat_round_up(used + within(bytes / 8, slack, most_slack));
	return end < r->hi ? end : r->hi;
}

// step_end is up to where it is mapped for a new last segment if anything is; slack ends at end.
static uint64_t step_end(const goflat_range *r, goflat_span segment, uint64_t end)
{
	uint64_t from = goflat_range_mapped(r, r->lo);
	uint64_t far = r->lo + (expected[r->device] ? expected[r->device] : first_step);
	if (far < end)
		far = from + within(from - r->lo, least_step, most_step);
	if (far > segment.hi + most_ahead)
		far = segment.hi + most_ahead;
	far = far > end ? far : end;
	return far < r->hi ? far : r->hi;
}

// supply maps the memory of a new segment, and slack if the driver has it. Short of
// memory it gives what is free elsewhere back first.
static int supply(goflat_range *r, goflat_span segment)
{
	int last = segment.hi > goflat_range_used(r);
	uint64_t end = last ? slack_end(r, segment.hi) : segment.hi;
	if (goflat_range_mapped(r, segment.lo) >= end)
		return 1;
	if (goflat_map_cover(r, segment.lo, last ? step_end(r, segment, end) : end))
		return 1;
	pressed[r->device] = 1;
	if (goflat_map_cover(r, segment.lo, segment.hi))
		return 1;
	trim(r->device);
	if (goflat_map_cover(r, segment.lo, segment.hi))
		return 1;
	trim(r->device);
	return 0;
}

static uint64_t take(goflat_range *r, uint64_t bytes, uintptr_t stream)
{
	uint64_t lo = goflat_range_place(r, bytes);
	if (!lo || !goflat_map_settle(r, stream))
		return 0;
	goflat_span segment = {lo, lo + bytes};
	return supply(r, segment) && goflat_spans_add(&r->segments, segment) ? lo : 0;
}

// hatch returns the canary's address, which is never touched.
static uint64_t hatch(int device)
{
	canary *c = &canaries[device];
	CUdeviceptr lo = 0;
	if (c->armed)
		return 0;
	if (!c->lo && cuMemAddressReserve(&lo, goflat_unit, goflat_unit, 0, 0) == CUDA_SUCCESS)
		c->lo = lo;
	c->armed = c->lo != 0;
	arming = 0;
	return c->lo;
}

void *goflat_collect_alloc(ssize_t bytes, int device, void *stream)
{
	uint64_t at = 0;
	if (!known(device) || bytes <= 0)
		return NULL;
	pthread_mutex_lock(&lock);
	goflat_range *r = range_of(selected[device]);
	if (forked)
		at = 0;
	else if (arming == device + 1 && (uint64_t)bytes <= goflat_unit)
		at = hatch(device);
	else if (r && r->open && r->device == device)
		at = take(r, goflat_round_up(bytes), (uintptr_t)stream);
	pthread_mutex_unlock(&lock);
	return (void *)at;
}

// give_back takes a segment out of its range.
static void give_back(goflat_range *r, uint64_t at, uintptr_t stream)
{
	size_t i = goflat_spans_after(&r->segments, at);
	if (i == r->segments.len || r->segments.at[i].lo != at)
		return;
	goflat_spans_remove(&r->segments, i);
	goflat_streams_add(&r->past, stream);
	r->holes = r->segments.len > 0;
}

void goflat_collect_free(void *memory, ssize_t bytes, int device, void *stream)
{
	(void)bytes;
	uint64_t at = (uint64_t)memory;
	if (!known(device))
		return;
	pthread_mutex_lock(&lock);
	goflat_range *r = range_at(at);
	if (at == canaries[device].lo)
		canaries[device].armed = 0;
	else if (r)
		give_back(r, at, (uintptr_t)stream);
	if (!keeping && !forked) {
		pressed[device] = 1;
		trim(device);
	}
	pthread_mutex_unlock(&lock);
}

int goflat_collect_claim(uint64_t lo, uint64_t hi)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_at(lo);
	int done = r && lo < hi && goflat_range_mapped(r, lo) >= hi && goflat_spans_add(&r->claims, (goflat_span){lo, hi});
	pthread_mutex_unlock(&lock);
	return done;
}

static void unclaim(goflat_range *r, uint64_t lo, uint64_t hi)
{
	for (size_t i = 0; i < r->claims.len; i++)
		if (r->claims.at[i].lo == lo && r->claims.at[i].hi == hi) {
			goflat_spans_remove(&r->claims, i);
			goflat_streams_join(&r->past, &r->users);
			return;
		}
}

void goflat_collect_unclaim(uint64_t lo, uint64_t hi)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_at(lo);
	if (r)
		unclaim(r, lo, hi);
	pthread_mutex_unlock(&lock);
}

// unused finds the range with the most memory of those that nothing lies in.
static goflat_range *unused(int device, uint64_t bytes)
{
	goflat_range *best = NULL;
	uint64_t most = 0;
	for (goflat_range *r = ranges; r; r = r->next) {
		uint64_t mapped = goflat_spans_bytes(&r->chunks);
		if (r->device != device || !goflat_range_idle(r) || r->hi - r->lo < bytes || (best && mapped <= most))
			continue;
		best = r;
		most = mapped;
	}
	return best;
}

// find_range returns an unused range or a new one, in the list; NULL with the reason in *s.
static goflat_range *find_range(int device, uintptr_t context, uint64_t bytes, goflat_status *s)
{
	goflat_range *r = unused(device, bytes);
	if (r)
		return r;
	r = goflat_map_reserve(device, context, bytes, s);
	if (r) {
		r->next = ranges;
		ranges = r;
	}
	return r;
}

// find_some_range makes do with fewer addresses where hundreds of ranges have used them up.
static goflat_range *find_some_range(int device, uintptr_t context, uint64_t bytes, goflat_status *s)
{
	goflat_range *r = find_range(device, context, bytes, s);
	if (r || s->code != CUDA_ERROR_OUT_OF_MEMORY)
		return r;
	trim(device);
	drop_unused(device, 0);
	r = find_range(device, context, bytes, s);
	return r ? r : find_range(device, context, bytes / 8, s);
}

goflat_status goflat_collect_begin(int device, uintptr_t context, uint64_t bytes, int64_t *id)
{
	goflat_status s = {CUDA_SUCCESS, "cuMemAddressReserve"};
	if (!known(device)) {
		s.code = CUDA_ERROR_INVALID_DEVICE;
		return s;
	}
	pthread_once(&prepared, prepare);
	keeping = 0;
	pthread_mutex_lock(&lock);
	goflat_range *r = find_some_range(device, context, bytes, &s);
	if (r) {
		homes[device].context = context;
		homes[device].bytes = bytes;
		r->open = 1;
		r->holes = 0;
		r->users = (goflat_streams){0};
		r->id = *id = selected[device] = ++last_id;
	}
	pthread_mutex_unlock(&lock);
	return s;
}

int64_t goflat_collect_reopen(int device)
{
	int64_t id = 0;
	if (!known(device))
		return 0;
	pthread_mutex_lock(&lock);
	uintptr_t context = homes[device].context;
	uint64_t bytes = homes[device].bytes;
	pthread_mutex_unlock(&lock);
	if (!bytes || goflat_collect_begin(device, context, bytes, &id).code != CUDA_SUCCESS)
		return 0;
	return id;
}

void goflat_collect_select(int device, int64_t id)
{
	if (known(device))
		selected[device] = id;
}

void goflat_collect_end(int64_t id)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_of(id);
	if (r) {
		r->open = 0;
		if (r->segments.len)
			expected[r->device] = slack_end(r, goflat_range_used(r)) - r->lo;
	}
	pthread_mutex_unlock(&lock);
}

int goflat_collect_idle(int64_t id)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_of(id);
	int idle = !r || goflat_range_idle(r);
	pthread_mutex_unlock(&lock);
	return idle;
}

void goflat_collect_keep(int on)
{
	keeping = on;
}

void goflat_collect_arm(int device)
{
	arming = device + 1;
}

int goflat_collect_armed(int device)
{
	arming = 0;
	pthread_mutex_lock(&lock);
	int armed = known(device) && canaries[device].armed;
	pthread_mutex_unlock(&lock);
	return armed;
}

int goflat_collect_pressed(int device)
{
	if (!known(device))
		return 0;
	pthread_mutex_lock(&lock);
	int was = pressed[device];
	pressed[device] = 0;
	pthread_mutex_unlock(&lock);
	return was;
}

int goflat_collect_ready(int device)
{
	goflat_collect_keep(1);
	return goflat_collect_pressed(device);
}

int goflat_collect_go_on(int device, int64_t id, int64_t next)
{
	goflat_collect_end(id);
	goflat_collect_select(device, next);
	return !next && !goflat_collect_armed(device) && goflat_collect_bytes(device).free;
}

void goflat_collect_use(uint64_t address, uintptr_t stream)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_at(address);
	if (r)
		goflat_streams_add(&r->users, stream);
	pthread_mutex_unlock(&lock);
}

void goflat_collect_trim(int device)
{
	pthread_mutex_lock(&lock);
	if (!forked) {
		trim(device);
		drop_unused(device, 0);
	}
	pthread_mutex_unlock(&lock);
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
	goflat_map_cover(r, goflat_range_used(r), slack_end(r, goflat_range_used(r)));
	goflat_streams_add(&r->users, stream);
	return 1;
}

size_t goflat_collect_room(int64_t id, uintptr_t stream, int prepare_it, goflat_span *spans, size_t max)
{
	size_t n = 0;
	pthread_mutex_lock(&lock);
	goflat_range *r = range_of(id);
	if (r && !forked && (!prepare_it || make_ready(r, stream)))
		n = room(r, spans, max);
	pthread_mutex_unlock(&lock);
	return n;
}

size_t goflat_collect_claims(int64_t id, goflat_span *spans, size_t max)
{
	size_t n = 0;
	pthread_mutex_lock(&lock);
	goflat_range *r = range_of(id);
	for (size_t i = 0; r && i < r->claims.len; i++)
		note(r->claims.at[i], spans, max, &n);
	pthread_mutex_unlock(&lock);
	return n;
}

int goflat_collect_range(uint64_t address, int64_t *id, uint64_t *lo, uint64_t *hi)
{
	pthread_mutex_lock(&lock);
	goflat_range *r = range_at(address);
	int found = r && r->chunks.len;
	if (found) {
		*id = r->id;
		*lo = r->chunks.at[0].lo;
		*hi = r->chunks.at[r->chunks.len - 1].hi;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

goflat_collect_count goflat_collect_bytes(int device)
{
	goflat_collect_count c = {0, 0, 0};
	pthread_mutex_lock(&lock);
	for (goflat_range *r = ranges; r; r = r->next) {
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
	pthread_mutex_unlock(&lock);
	return c;
}
