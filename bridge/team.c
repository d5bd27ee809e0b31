// The team is torch's: libgomp's threads, found in the library that libtorch itself is linked with.
//
// These threads keep spinning for milliseconds after every parallel operation of torch. Threads of our own would share
// the cores with them and get half; the spinning ones are there at once. It also makes torch.set_num_threads and
// OMP_NUM_THREADS hold for us. docs/adr/0015-threads-of-a-copy-on-the-cpu.md has the numbers.
#define _GNU_SOURCE
#include "team.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collect.h"

static struct {
  int looked;
  int (*threads)(void);                                                   // at::get_num_threads()
  void (*parallel)(void (*work)(void *), void *, unsigned, unsigned);     // GOMP_parallel
} team;

static void look(void) {
  team.threads = (int (*)(void))gf_symbol("libtorch_cpu.so", "_ZN2at15get_num_threadsEv");
  void *found = gf_symbol("libtorch_cpu.so", "GOMP_parallel");
  team.parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))found;
  __atomic_store_n(&team.looked, 1, __ATOMIC_RELEASE);
}

int gf_team_size(void) {
  if (!__atomic_load_n(&team.looked, __ATOMIC_ACQUIRE)) look();  // two threads at once find the same
  return team.threads == NULL || team.parallel == NULL ? 0 : team.threads();
}

// The kernel's number of one of this thread's team, 0 before its first copy. Each thread has a team of its own.
static __thread int32_t mate;

// Time on a core that the team's thread has had so far, in nanoseconds; -1 where there is none. Linux makes the clock of
// a thread from its number: this is what pthread_getcpuclockid does, for a thread whose handle we do not have.
static int64_t mate_time(void) {
  struct timespec t;
  clockid_t clock = (clockid_t)((~(uint32_t)mate << 3) | 6);
  return mate == 0 || clock_gettime(clock, &t) != 0 ? -1 : t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int gf_team_awake(void) {
  int64_t before = mate_time();
  return before < 0 ? -1 : mate_time() > before;
}

void gf_copy_pieces(const gf_piece *pieces, int64_t count) {
  for (const gf_piece *p = pieces; p < pieces + count; p++)
    memcpy((void *)(uintptr_t)p->dst, (const void *)(uintptr_t)p->src, (size_t)p->bytes);
}

void gf_copy_plain(const uint64_t *dst, int64_t batches, const uint64_t *src, const int64_t *rows, int64_t entries, int64_t bytes_of_row) {
  for (int64_t b = 0; b < batches; b++) {
    char *to = (char *)(uintptr_t)dst[b];
    for (int64_t e = b; e < entries; e += batches) {
      size_t bytes = (size_t)(rows[e] * bytes_of_row);
      if (bytes != 0) memcpy(to, (const void *)(uintptr_t)src[e], bytes);  // an empty entry may have no address
      to += bytes;
    }
  }
}

typedef struct {
  const gf_piece *pieces;
  const int64_t *ends;
  int64_t shares, next;
  int32_t caller, mate;  // threads, by the kernel's numbers
} work;

static __thread int32_t self;

static void introduce(work *w) {
  if (self == 0) self = (int32_t)syscall(SYS_gettid);
  if (self != w->caller) __atomic_store_n(&w->mate, self, __ATOMIC_RELAXED);
}

static void take_shares(void *argument) {
  work *w = argument;
  introduce(w);
  int64_t s;
  while ((s = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->shares) {
    int64_t first = s == 0 ? 0 : w->ends[s - 1];
    gf_copy_pieces(w->pieces + first, w->ends[s] - first);
  }
}

void gf_team_copy(const gf_piece *pieces, const int64_t *ends, int64_t shares, int threads) {
  if (self == 0) self = (int32_t)syscall(SYS_gettid);
  work w = {pieces, ends, shares, 0, self, 0};
  if (threads > shares) threads = (int)shares;
  if (threads > 1 && team.parallel != NULL)
    team.parallel(take_shares, &w, (unsigned)threads, 0);
  else
    take_shares(&w);
  if (w.mate != 0) mate = w.mate;
}

void gf_want_huge_pages(uint64_t addr, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  enum { HUGE_PAGE = 2 << 20 };
  uint64_t lo = (addr + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1), hi = (addr + (uint64_t)bytes) & ~(uint64_t)(HUGE_PAGE - 1);
  if (lo < hi) madvise((void *)(uintptr_t)lo, hi - lo, MADV_HUGEPAGE);  // a failure costs speed only
#else
  (void)addr, (void)bytes;
#endif
}
