// collect_supply.c: how much memory is mapped under torch's segments, and when it goes back.
#include "collect_map.h"
#include "collect_state.h"

// Slack behind the last segment: free room for in-place plans. Half of what is used, and
// small jobs move each byte once, in one launch; of large ones an eighth, with which they
// seldom move one twice. Adr 11 has the numbers.
static const uint64_t least_slack = (uint64_t)4 << 20, most_half = (uint64_t)64 << 20, most_slack = (uint64_t)512 << 20;

// So that there are few mapping calls, as much is mapped as the device's last context used,
// or at first so much, but no more than that ahead. Beyond, what is mapped doubles.
static const uint64_t first_step = (uint64_t)32 << 20, most_ahead = (uint64_t)96 << 20;
static const uint64_t least_step = (uint64_t)8 << 20, most_step = (uint64_t)64 << 20;

void goflat_supply_drop(int device, int keep)
{
	for (goflat_range **at = &goflat_state.ranges; *at;) {
		goflat_range *r = *at, *next = r->next;
		int unused = r->device == device && goflat_range_idle(r) && !r->chunks.len;
		if (unused && keep-- <= 0 && goflat_map_release(r))
			*at = next;
		else
			at = &r->next;
	}
}

void goflat_supply_trim(int device)
{
	for (goflat_range *r = goflat_state.ranges; r; r = r->next)
		if (r->device == device)
			goflat_map_trim(r);
	goflat_supply_drop(device, 1);
}

static uint64_t within(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

uint64_t goflat_supply_end(const goflat_range *r, uint64_t used)
{
	uint64_t bytes = used - r->lo, slack = within(bytes / 2, least_slack, most_half);
	uint64_t end = goflat_round_up(used + within(bytes / 8, slack, most_slack));
	return end < r->hi ? end : r->hi;
}

// step_end is up to where it is mapped for a new last segment if anything is; slack ends at end.
static uint64_t step_end(const goflat_range *r, goflat_span segment, uint64_t end)
{
	uint64_t from = goflat_range_mapped(r, r->lo);
	uint64_t far = r->lo + (goflat_state.expected[r->device] ? goflat_state.expected[r->device] : first_step);
	if (far < end)
		far = from + within(from - r->lo, least_step, most_step);
	if (far > segment.hi + most_ahead)
		far = segment.hi + most_ahead;
	far = far > end ? far : end;
	return far < r->hi ? far : r->hi;
}

int goflat_supply(goflat_range *r, goflat_span segment)
{
	int last = segment.hi > goflat_range_used(r);
	uint64_t end = last ? goflat_supply_end(r, segment.hi) : segment.hi;
	if (goflat_range_mapped(r, segment.lo) >= end)
		return 1;
	if (goflat_map_cover(r, segment.lo, last ? step_end(r, segment, end) : end))
		return 1;
	goflat_state.pressed[r->device] = 1;
	if (goflat_map_cover(r, segment.lo, segment.hi))
		return 1;
	goflat_supply_trim(r->device);
	if (goflat_map_cover(r, segment.lo, segment.hi))
		return 1;
	goflat_supply_trim(r->device);
	return 0;
}
