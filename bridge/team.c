// The team is torch's: libgomp's threads, found in the library that libtorch itself is linked with.
//
// These threads keep spinning for milliseconds after every parallel operation of torch. Threads of our own would share
// the cores with them and get half; the spinning ones are there at once. It also makes torch.set_num_threads and
// OMP_NUM_THREADS hold for us. docs/adr/0015 has the numbers.
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

// A cache line; the compiler makes the widest moves of it that every machine of the wheel has.
typedef char line __attribute__((vector_size(64), aligned(1), may_alias));

enum {
  GF_LINE = 64,
  GF_FETCH = 2048,  // bytes of pieces that are fetched before their turn
  GF_AHEAD = 1024,  // bytes between a store and the prefetch of its line
  GF_LONG = 4096,   // the least bytes for which the loop below beats memcpy
};

// Fetching a line to own it before it is written keeps more misses in flight: 40 MiB at 14.9 GB/s instead of 12.2.
static inline void own_soon(char *p) {
#ifdef __x86_64__
  __asm__ volatile("prefetchw %0" : : "m"(*p));
#else
  __builtin_prefetch(p, 1);
#endif
}

// memcpy, but never past the cache: glibc's goes past it from 3/4 of what it takes for a core's share of the last
// level, which a virtual machine states wrongly. Stores past the cache were slower at every size (docs/adr/0015).
static void copy_long(char *dst, const char *src, size_t bytes) {
  size_t head = -(uintptr_t)dst % GF_LINE;
  memcpy(dst, src, head);
  dst += head, src += head, bytes -= head;
  for (; bytes >= 2 * GF_LINE; dst += 2 * GF_LINE, src += 2 * GF_LINE, bytes -= 2 * GF_LINE) {
    own_soon(dst + GF_AHEAD);
    own_soon(dst + GF_AHEAD + GF_LINE);
    line a = *(const line *)src, b = *(const line *)(src + GF_LINE);
    *(line *)dst = a;
    *(line *)(dst + GF_LINE) = b;
  }
  memcpy(dst, src, bytes);
}

// Both sides of a piece on their way into the cache: the processor's own prefetching needs some lines of a piece before
// it sees where they lead, and pieces of a few lines end there.
static void fetch(const gf_piece *p) {
  int64_t bytes = p->bytes < GF_AHEAD ? p->bytes : GF_AHEAD;
  for (int64_t at = 0; at < bytes; at += GF_LINE) {
    __builtin_prefetch((const char *)(uintptr_t)p->src + at);
    own_soon((char *)(uintptr_t)p->dst + at);
  }
}

static void copy_piece(const gf_piece *p) {
  char *dst = (char *)(uintptr_t)p->dst;
  const char *src = (const char *)(uintptr_t)p->src;
  if (p->bytes < GF_LONG)
    memcpy(dst, src, (size_t)p->bytes);
  else
    copy_long(dst, src, (size_t)p->bytes);
}

void gf_copy_pieces(const gf_piece *pieces, int64_t count) {
  int64_t fetched = 0, ahead = 0;  // pieces, and the bytes of those that are not copied yet
  for (int64_t i = 0; i < count; i++) {
    for (; fetched < count && ahead < GF_FETCH; fetched++) {
      fetch(&pieces[fetched]);
      ahead += pieces[fetched].bytes;
    }
    copy_piece(&pieces[i]);
    ahead -= pieces[i].bytes;
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
