// Records of adopted outputs, and the deleters that end them.
//
// torch calls a deleter when the storage of the output dies: on any thread, with or without the GIL, while the
// interpreter ends, in a forked child. So all here is plain C behind one lock.
#include "adopted.h"

#include <pthread.h>

#include "adopt.h"

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gf_record *buckets[BUCKETS];
static int64_t live;

static void lock_table(void) { pthread_mutex_lock(&lock); }
static void unlock_table(void) { pthread_mutex_unlock(&lock); }

// A fork while another thread has the lock would leave it taken for ever in the child.
__attribute__((constructor)) static void survive_forks(void) { pthread_atfork(lock_table, unlock_table, unlock_table); }

static gf_record **bucket_of(const void *storage) {
  return &buckets[(uint64_t)(uintptr_t)storage * 0x9e3779b97f4a7c15u >> 56 & (BUCKETS - 1)];
}

int64_t gf_live_adopted(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED); }

static void delete_versioned(gf_dl_managed_versioned *managed) { gf_record_end(managed->manager); }
static void delete_legacy(gf_dl_managed *managed) { gf_record_end(managed->manager); }

gf_record *gf_record_new(const gf_dl_tensor *tensor, const int64_t *shape, gf_parts *parts) {
  gf_record *r = calloc(1, sizeof *r + 2 * (size_t)tensor->ndim * sizeof *r->dims);
  if (r == NULL) return NULL;
  gf_dl_tensor t = *tensor;
  t.shape = r->dims, t.strides = r->dims + t.ndim;
  int64_t step = 1;
  for (int32_t i = t.ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i], t.strides[i] = step;
    step *= shape[i];
  }
  r->versioned = (gf_dl_managed_versioned){.version = {GF_DL_MAJOR, 0}, .manager = r, .deleter = delete_versioned, .tensor = t};
  r->legacy = (gf_dl_managed){.tensor = t, .manager = r, .deleter = delete_legacy};
  r->parts = *parts;
  *parts = (gf_parts){0};
  __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
  return r;
}

static void leave(gf_record *record) {
  lock_table();
  gf_record **at = bucket_of(record->storage);
  while (*at != NULL && *at != record) at = &(*at)->next;
  if (*at != NULL) *at = record->next;
  unlock_table();
}

// Memory goes back to torch first: while it is claimed, its addresses stay mapped.
void gf_record_end(gf_record *record) {
  if (record->storage != NULL) leave(record);
  if (record->gone != NULL) *record->gone = 1;
  gf_parts_release(&record->parts);
  if (record->unclaim != NULL) record->unclaim(record->claim_lo, record->claim_hi);
  free(record);
  __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
}

void gf_adopted_enter(gf_record *record, const void *storage) {
  lock_table();
  gf_record **at = bucket_of(storage);
  record->storage = storage;
  record->next = *at;
  *at = record;
  unlock_table();
}

// Both must agree: a storage whose memory was swapped for another's is none of ours any more.
static gf_record *find(const void *storage, uint64_t data) {
  gf_record *r = *bucket_of(storage);
  while (r != NULL && !(r->storage == storage && (uint64_t)(uintptr_t)r->versioned.tensor.data == data)) r = r->next;
  return r;
}

int gf_adopted_is(const void *storage, uint64_t data) {
  if (gf_live_adopted() == 0) return 0;
  lock_table();
  int is = find(storage, data) != NULL;
  unlock_table();
  return is;
}

static int copy_parts(const gf_parts *from, uint64_t lo, uint64_t hi, gf_parts *to) {
  int any = 0;
  *to = (gf_parts){.items = malloc((size_t)(from->len > 0 ? from->len : 1) * sizeof *to->items)};
  if (to->items == NULL) return -1;
  for (int64_t i = 0; i < from->len; i++) any |= from->items[i]->lo < hi && lo < from->items[i]->hi;
  for (int64_t i = 0; i < from->len; i++)
    if (!any || (from->items[i]->lo < hi && lo < from->items[i]->hi)) to->items[to->len++] = gf_part_retain(from->items[i]);
  return 1;
}

int gf_adopted_parts_of(const void *storage, uint64_t data, uint64_t address, int64_t bytes, gf_parts *parts) {
  if (gf_live_adopted() == 0) return 0;
  lock_table();
  const gf_record *record = find(storage, data);
  int found = record == NULL ? 0 : copy_parts(&record->parts, address, address + (uint64_t)bytes, parts);
  unlock_table();
  return found;
}
