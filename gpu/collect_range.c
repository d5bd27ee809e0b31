#include "collect_range.h"

#include <stdlib.h>
#include <string.h>

int goflat_spans_add(goflat_spans *s, goflat_span span)
{
	if (s->len == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 16;
		goflat_span *at = realloc(s->at, cap * sizeof *at);
		if (!at)
			return 0;
		s->at = at;
		s->cap = cap;
	}
	size_t i = s->len;
	while (i > 0 && s->at[i - 1].lo > span.lo)
		i--;
	memmove(s->at + i + 1, s->at + i, (s->len - i) * sizeof *s->at);
	s->at[i] = span;
	s->len++;
	return 1;
}

void goflat_spans_remove(goflat_spans *s, size_t i)
{
	s->len--;
	memmove(s->at + i, s->at + i + 1, (s->len - i) * sizeof *s->at);
}

size_t goflat_spans_after(const goflat_spans *s, uint64_t address)
{
	size_t from = 0, to = s->len;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (s->at[middle].hi > address)
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

uint64_t goflat_spans_bytes(const goflat_spans *s)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < s->len; i++)
		bytes += s->at[i].hi - s->at[i].lo;
	return bytes;
}

void goflat_streams_add(goflat_streams *s, uintptr_t stream)
{
	for (size_t i = 0; i < s->len; i++)
		if (s->at[i] == stream)
			return;
	if (s->len == sizeof s->at / sizeof *s->at)
		s->all = 1;
	else
		s->at[s->len++] = stream;
}

void goflat_streams_join(goflat_streams *s, const goflat_streams *other)
{
	for (size_t i = 0; i < other->len; i++)
		goflat_streams_add(s, other->at[i]);
	s->all |= other->all;
}

int goflat_range_busy(const goflat_range *r, uint64_t address, goflat_span *busy)
{
	int found = 0;
	size_t i = goflat_spans_after(&r->segments, address);
	if (i < r->segments.len) {
		*busy = r->segments.at[i];
		found = 1;
	}
	for (i = 0; i < r->claims.len && (!found || r->claims.at[i].lo < busy->lo); i++)
		if (r->claims.at[i].hi > address) {
			*busy = r->claims.at[i];
			found = 1;
		}
	return found;
}

uint64_t goflat_range_used(const goflat_range *r)
{
	return r->segments.len ? r->segments.at[r->segments.len - 1].hi : r->lo;
}

uint64_t goflat_range_place(const goflat_range *r, uint64_t bytes)
{
	uint64_t at = r->holes ? r->lo : goflat_range_used(r);
	goflat_span busy;
	while (goflat_range_busy(r, at, &busy) && busy.lo < at + bytes)
		at = goflat_round_up(busy.hi);
	return bytes <= r->hi - at ? at : 0;
}

uint64_t goflat_range_mapped(const goflat_range *r, uint64_t address)
{
	for (size_t i = goflat_spans_after(&r->chunks, address); i < r->chunks.len && r->chunks.at[i].lo <= address; i++)
		address = r->chunks.at[i].hi;
	return address;
}

int goflat_range_idle(const goflat_range *r)
{
	return !r->open && !r->segments.len && !r->claims.len;
}
