// Copies on the CPU, made by the threads that torch has.
#ifndef GOFLAT_TEAM_H
#define GOFLAT_TEAM_H

#include <stdint.h>

typedef struct {
  uint64_t dst, src;  // addresses; the two ranges do not overlap
  int64_t bytes;
} gf_piece;

// How many threads torch would use for an operation of this thread, 0 where it has no team that we can call.
int gf_team_size(void);

// Whether the team of this thread is on its cores: 1, 0 if it sleeps or others have them, -1 before its first copy.
int gf_team_awake(void);

// Copies all pieces. ends[i] is the piece behind the last one of share i; a share is what one thread takes at a time.
// Returns when all bytes are in place. Needs no GIL and calls nothing of Python.
void gf_team_copy(const gf_piece *pieces, const int64_t *ends, int64_t shares, int threads);

// The same by the calling thread alone.
void gf_copy_pieces(const gf_piece *pieces, int64_t count);

// Joins contiguous entries into contiguous outputs: entry e has bytes_of_row * rows[e] bytes at src[e] and belongs to output
// e % batches, in which the entries follow each other from dst[e % batches] on. By the calling thread alone.
void gf_copy_plain(const uint64_t *dst, int64_t batches, const uint64_t *src, const int64_t *rows, int64_t entries, int64_t bytes_of_row);

// Asks for large pages below bytes of fresh memory; changes nothing else. See docs/adr/0015-threads-of-a-copy-on-the-cpu.md.
void gf_want_huge_pages(uint64_t addr, int64_t bytes);

#endif
