#define _GNU_SOURCE
#include "collect.h"

#include "collect_map.h"
#include "collect_state.h"

// A canary is addresses without memory that torch caches as a segment.
typedef struct {
	uint64_t lo; // reserved on first use, kept
	int armed;
} canary;

goflat_shared goflat_state = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static int64_t last_id;
static canary canaries[goflat_max_devices];
static struct {
	uintptr_t context;
	uint64_t bytes; // of a range; 0: no range yet
} homes[goflat_max_devices];

static __thread int64_t selected[goflat_max_devices]; // ids of ranges
static __thread int keeping;
static __thread int arming; // a device + 1

static void before_fork(void)
{
	pthread_mutex_lock(&goflat_state.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&goflat_state.lock);
}

static void in_child(void)
{
	goflat_state.forked = 1;
	pthread_mutex_unlock(&goflat_state.lock);
}

static void prepare(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

static int known(int device)
{
	return device >= 0 && device < goflat_max_devices;
}

goflat_range *goflat_state_range(int64_t id)
{
	for (goflat_range *r = goflat_state.ranges; r; r = r->next)
		if (r->id == id)
			return r;
	return NULL;
}

goflat_range *goflat_state_range_at(uint64_t address)
{
	for (goflat_range *r = goflat_state.ranges; r; r = r->next)
		if (address >= r->lo && address < r->hi)
			return r;
	return NULL;
}

static uint64_t take(goflat_range *r, uint64_t bytes, uintptr_t stream)
{
	uint64_t lo = goflat_range_place(r, bytes);
	if (!lo || !goflat_map_settle(r, stream))
		return 0;
	goflat_span segment = {lo, lo + bytes};
	return goflat_supply(r, segment) && goflat_spans_add(&r->segments, segment) ? lo : 0;
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range(selected[device]);
	if (goflat_state.forked)
		at = 0;
	else if (arming == device + 1 && (uint64_t)bytes <= goflat_unit)
		at = hatch(device);
	else if (r && r->open && r->device == device)
		at = take(r, goflat_round_up(bytes), (uintptr_t)stream);
	pthread_mutex_unlock(&goflat_state.lock);
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range_at(at);
	if (at == canaries[device].lo)
		canaries[device].armed = 0;
	else if (r)
		give_back(r, at, (uintptr_t)stream);
	if (!keeping && !goflat_state.forked) {
		goflat_state.pressed[device] = 1;
		goflat_supply_trim(device);
	}
	pthread_mutex_unlock(&goflat_state.lock);
}

int goflat_collect_claim(uint64_t lo, uint64_t hi)
{
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range_at(lo);
	int done = r && lo < hi && goflat_range_mapped(r, lo) >= hi && goflat_spans_add(&r->claims, (goflat_span){lo, hi});
	pthread_mutex_unlock(&goflat_state.lock);
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range_at(lo);
	if (r)
		unclaim(r, lo, hi);
	pthread_mutex_unlock(&goflat_state.lock);
}

// unused finds the range with the most memory of those that nothing lies in.
static goflat_range *unused(int device, uint64_t bytes)
{
	goflat_range *best = NULL;
	uint64_t most = 0;
	for (goflat_range *r = goflat_state.ranges; r; r = r->next) {
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
		r->next = goflat_state.ranges;
		goflat_state.ranges = r;
	}
	return r;
}

// find_some_range makes do with fewer addresses where hundreds of ranges have used them up.
static goflat_range *find_some_range(int device, uintptr_t context, uint64_t bytes, goflat_status *s)
{
	goflat_range *r = find_range(device, context, bytes, s);
	if (r || s->code != CUDA_ERROR_OUT_OF_MEMORY)
		return r;
	goflat_supply_trim(device);
	goflat_supply_drop(device, 0);
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = find_some_range(device, context, bytes, &s);
	if (r) {
		homes[device].context = context;
		homes[device].bytes = bytes;
		r->open = 1;
		r->holes = 0;
		r->users = (goflat_streams){0};
		r->id = *id = selected[device] = ++last_id;
	}
	pthread_mutex_unlock(&goflat_state.lock);
	return s;
}

int64_t goflat_collect_reopen(int device)
{
	int64_t id = 0;
	if (!known(device))
		return 0;
	pthread_mutex_lock(&goflat_state.lock);
	uintptr_t context = homes[device].context;
	uint64_t bytes = homes[device].bytes;
	pthread_mutex_unlock(&goflat_state.lock);
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range(id);
	if (r) {
		r->open = 0;
		if (r->segments.len)
			goflat_state.expected[r->device] = goflat_supply_end(r, goflat_range_used(r)) - r->lo;
	}
	pthread_mutex_unlock(&goflat_state.lock);
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
	pthread_mutex_lock(&goflat_state.lock);
	int armed = known(device) && canaries[device].armed;
	pthread_mutex_unlock(&goflat_state.lock);
	return armed;
}

int goflat_collect_pressed(int device)
{
	if (!known(device))
		return 0;
	pthread_mutex_lock(&goflat_state.lock);
	int was = goflat_state.pressed[device];
	goflat_state.pressed[device] = 0;
	pthread_mutex_unlock(&goflat_state.lock);
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
	pthread_mutex_lock(&goflat_state.lock);
	goflat_range *r = goflat_state_range_at(address);
	if (r)
		goflat_streams_add(&r->users, stream);
	pthread_mutex_unlock(&goflat_state.lock);
}

void goflat_collect_trim(int device)
{
	pthread_mutex_lock(&goflat_state.lock);
	if (!goflat_state.forked) {
		goflat_supply_trim(device);
		goflat_supply_drop(device, 0);
	}
	pthread_mutex_unlock(&goflat_state.lock);
}
