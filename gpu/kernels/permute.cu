// permute.cu: moves units of memory within the memory that they lie in, along chains:
// in a chain every position takes the unit of the next one. No scratch.
//
// Launched by gpu.Permute (gpu/internal/launch/permute.go). A thread owns one column of
// a group: a vector of V bytes at the same place in every unit, so threads never meet
// within a group. All chains lie end to end in the table, and a group is a stretch of
// it:
//
//     chains      a0 a1 a2 a3|b0 b1|c0 c1 c2 c3 c4      x|y: a chain ends at x
//     groups      |--- 0 ---|---- 1 -----|--- 2 ---|
//
// Cut like this, group 0 takes one unit that another group overwrites, its `next` (a3),
// and group 1 two: the `head` of the chain that it finishes (a0) and its next (c2). They are
// loaded into registers, then the whole grid meets at one barrier, then everybody walks.
// Where chains are short, groups are whole chains: no barrier, no cooperative launch.
//
// Assumed: origin, grain and columns fit vectors of sizeof(V), positions do not overlap,
// and a launch with a barrier is cooperative, its word used by no other meanwhile.
//
// The floor is cudaMemcpy of the bytes of all entries. For ragged jobs it cannot be reached: a plain
// copy of the same rows from one buffer to another takes, in the order of the walk, 1.10 (3.2 GB),
// 1.11 (1.9 GB) and 1.11 (2 KB rows) times as long, in that of destinations 1.01, 1.02 and 1.07 (adr 22).
// On an H200, as multiples of it, after a call of the same and with L2 full of other data
// (docs/bench/permute-h200-2026-12-01.json):
//
//     whole chains    3.2 GB of entries      0.90  0.90    40 MB of entries  0.55  0.83
//                     3.2 GB of 50 KB rows   0.91  0.90    40 MB of rows     0.56  0.83
//     with a barrier  3.2 GB of 50 KB rows   1.08  1.08    39 MB             0.53  0.85
//                     1.9 GB                 1.11  1.10    23 MB             1.09  1.14
//                     3.3 GB of 2 KB rows    1.11  1.11
//     by slices       1.3 GB of 4098 B rows  1.55  1.54    43 MB of 1001 B   1.22  1.41
//
// Whole chains are those of uniform jobs, of which an eighth (3.2 GB) or a quarter (40 MB) stays
// where it is. 40 MB fit into L2, memcpy's 80 do not. What decides there, by
// `go test -bench Permute ./gpu` (variants in docs/bench/permute-h200-2026-11-30.json):
//
//   - Cuts: the chains of ragged jobs are few and long. Left whole they take 8 to 14 times
//     memcpy, and 266 times with 2 KB rows.
//   - Threads: 2048 a multiprocessor; 1536 take up to 1.05 times as long. With a barrier they
//     come in blocks of 1024: of 256, four times as many meet, which takes 1.08 times as
//     long at 23 and 39 MB. Without one they come in blocks of 256: of 1024 they take 1.01 to
//     1.04 times as long at 3.2 GB. The code is the same.
//   - Loads ahead: 2. 1 takes 1.02 times as long at 3.2 GB of whole chains and 1.05 at 23 MB. 4
//     leave registers for 1024 threads, which take as long with a barrier and 1.1 times without;
//     with more threads, and with 8 loads, registers are spilled: 1.3 to 1.5 times memcpy.
//
// Units that are no multiple of 16 bytes, or begin elsewhere, move by slices (permute.cuh):
// a warp owns up to 2032 bytes of every unit and shifts them from where they lie in
// their vectors to where they are to lie. Short units move by the largest power of two that
// divides everything, down to a byte. What takes long with either is that L2 takes about 30 ps
// for each sector of 32 bytes that a store covers in part: with vectors of 1, 2, 4 and 8 bytes the
// same number follows from jobs of 5.1, 3.2, 2.3 and 1.7 times memcpy, of which neither
// instructions nor bytes of DRAM account for more than half. So slices are long, and their ends
// are stored by one access each.
#include "permute.cuh"

// A PermuteHead is the first parameter of every launch; the same words are written in
// Go. The table follows it or lies in device memory: `positions` positions, then a word
// for each group.
struct PermuteHead {
    u64 origin;  // address of the first column of position 0
    u64 barrier; // address of the word that counts arrivals; 0: groups are whole chains
    u64 table;   // address of the table, 0 if it follows
    u32 grain;   // bytes between positions
    u32 columns; // vectors of a unit
    u32 factor, shift; // divide by columns
    u32 groups;
    u32 first; // group of the first thread
    u32 positions;
    u32 closed; // so many positions are in closed chains, which come first; the rest in paths
    u32 share, rest; // with a barrier every group has `share` positions, the first `rest` one more
    u32 arrivals; // what the barrier's word is when all blocks have arrived
    u32 slice, last; // bytes of a warp's slice of a unit, and of the last one; 0 where threads move vectors
    u32 unused;
};

enum {
    // A position's mark: its chain ends here.
    END_BIT = 0x80000000,
    // A group's word, if there is a barrier, is where in the table the closed chain
    // starts that it finishes first, or this. Without a barrier it is where the group
    // starts.
    NO_HEAD = 0xffffffff,
};

// The two sizes of kernel parameters, and the head alone.
struct Permute4K {
    PermuteHead head;
    u32 word[(4096 - sizeof(PermuteHead)) / 4];
};

struct Permute32K {
    PermuteHead head;
    u32 word[(32760 - sizeof(PermuteHead)) / 4];
};

struct PermuteFar {
    PermuteHead head;
};

// arrive says that this thread has done all loads that must precede the stores of
// others; await returns when all threads of the grid have said so. The word counts blocks,
// on and on from launch to launch, which saves a reset before each: so await is told what
// the count will be, modulo 2^32.
DEVICE void arrive(u64 barrier)
{
#ifdef __CUDACC__
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
#else
    host_arrive(reinterpret_cast<void *>(barrier));
#endif
}

DEVICE void await(u64 barrier, u32 arrivals)
{
#ifdef __CUDACC__
    if (threadIdx.x == 0) {
        u32 arrived;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(barrier) : "memory");
        while (int(arrived - arrivals) < 0);
    }
    __syncthreads();
#else
    host_await(reinterpret_cast<void *>(barrier), arrivals);
#endif
}

// A table in the parameters, and one in device memory.
struct NearTable {
    const u32 *word;
};

struct FarTable {
    const u8 *at;
};

DEVICE u32 word(const NearTable &t, u32 i)
{
    return t.word[i];
}

DEVICE u32 word(const FarTable &t, u32 i)
{
#ifdef __CUDACC__
    return __ldg(reinterpret_cast<const u32 *>(t.at) + i);
#else
    return host_load<u32>(t.at + u64(i) * 4);
#endif
}

DEVICE NearTable table_of(const Permute4K &p)
{
    return NearTable{p.word};
}

DEVICE NearTable table_of(const Permute32K &p)
{
    return NearTable{p.word};
}

DEVICE FarTable table_of(const PermuteFar &p)
{
    return FarTable{reinterpret_cast<const u8 *>(p.head.table)};
}

// A Share is what a thread does: the positions [from, to) of the table, in one column.
struct Share {
    u8 *column; // of position 0
    u32 from, to;
    u32 head; // where in the table the chain starts that the share begins within; NO_HEAD if not needed
    u32 bytes; // of the column, where it is a slice
};

template <typename V> DEVICE void find_column(Share &s, const PermuteHead &, u32 column, const V *)
{
    s.column += u64(column) * sizeof(V);
}

template <u32 ROWS> DEVICE void find_column(Share &s, const PermuteHead &h, u32 column, const Slice<ROWS> *)
{
    s.bytes = column / 32 + 1 < h.columns / 32 ? h.slice : h.last;
    s.column += u64(column / 32) * h.slice;
}

template <typename V, typename Table> DEVICE Share share_of_thread(const PermuteHead &h, const Table &t)
{
    const u32 number = blockIdx.x * blockDim.x + threadIdx.x; // below 2^31
    const u32 turn = (multiply_high(number, h.factor) + number) >> h.shift;
    const u32 group = h.first + turn;
    Share s = {reinterpret_cast<u8 *>(h.origin), 0, 0, NO_HEAD, 0};
    find_column(s, h, number - turn * h.columns, static_cast<const V *>(nullptr));
    if (group >= h.groups)
        return s;
    if (h.barrier) {
        s.from = group * h.share + smaller(group, h.rest);
        s.to = s.from + h.share + (group < h.rest);
        s.head = word(t, h.positions + group);
    } else {
        s.from = word(t, h.positions + group);
        s.to = group + 1 < h.groups ? word(t, h.positions + group + 1) : h.positions;
        if (s.from < h.closed)
            s.head = s.from;
    }
    return s;
}

DEVICE u8 *place(const PermuteHead &h, const Share &s, u32 position)
{
    return s.column + u64(position & ~END_BIT) * h.grain;
}

// Outside is what a share needs of memory that others overwrite, and of its own first
// position.
template <typename V> struct Outside {
    Kept<V> head, next;
};

template <typename V, typename Table> DEVICE void load_outside(Outside<V> &o, const PermuteHead &h, const Table &t, const Share &s)
{
    V v = {};
    if (s.head != NO_HEAD) {
        fetch(v, place(h, s, word(t, s.head)), s.bytes);
        keep(o.head, v);
    }
    if (s.from < s.to && s.to < h.positions && !(word(t, s.to - 1) & END_BIT)) {
        fetch(v, place(h, s, word(t, s.to)), s.bytes);
        keep(o.next, v);
    }
}

// Positions that a thread loads before it stores the first.
template <typename V> struct Ahead {
    enum { LOADS = 2 };
};

template <> struct Ahead<Slice<4>> {
    enum { LOADS = 1 };
};

// walk moves a share, LOADS positions at a time. At every position one vector is loaded, that
// of the next position: where a chain ends, this is the head of the next chain. Words
// are read a round ahead.
template <typename V, typename Table> DEVICE void walk(const PermuteHead &h, const Table &t, const Share &s, Outside<V> &o)
{
    enum { LOADS = Ahead<V>::LOADS };
    u32 w[LOADS + 1];
    UNROLL
    for (u32 k = 0; k <= LOADS; k++)
        w[k] = s.from + k < s.to ? word(t, s.from + k) : 0;
    ROLLED
    for (u32 i = s.from; i < s.to; i += LOADS) {
        V v[LOADS] = {};
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            if (i + k + 1 < s.to && (!(w[k] & END_BIT) || i + k + 1 < h.closed))
                fetch(v[k], place(h, s, w[k + 1]), s.bytes);
        u32 ahead[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            ahead[k] = i + LOADS + k + 1 < s.to ? word(t, i + LOADS + k + 1) : 0;
        UNROLL
        for (u32 k = 0; k < LOADS; k++) {
            if (i + k >= s.to)
                break;
            const bool ends = w[k] & END_BIT;
            if (ends)
                swap(v[k], o.head);
            else if (i + k + 1 == s.to)
                get(v[k], o.next);
            if (!ends || i + k < h.closed)
                put(place(h, s, w[k]), v[k], s.bytes);
        }
        w[0] = w[LOADS];
        UNROLL
        for (u32 k = 0; k < LOADS; k++)
            w[k + 1] = ahead[k];
    }
}

// The two phases of a kernel, which the fake driver calls one after the other for all threads.
template <typename V, typename Parameters> DEVICE void permute_load(const Parameters &p, Outside<V> &o)
{
    load_outside(o, p.head, table_of(p), share_of_thread<V>(p.head, table_of(p)));
    if (p.head.barrier)
        arrive(p.head.barrier);
}

template <typename V, typename Parameters> DEVICE void permute_walk(const Parameters &p, Outside<V> &o)
{
    if (p.head.barrier)
        await(p.head.barrier, p.head.arrivals);
    walk(p.head, table_of(p), share_of_thread<V>(p.head, table_of(p)), o);
}

template <typename V, typename Parameters> DEVICE void permute(const Parameters &p)
{
    Outside<V> o;
    permute_load(p, o);
    permute_walk(p, o);
}

// permute_byte is the same the obvious way: every thread walks all chains in its byte of
// the unit. It is what the others are tested against; nothing else launches it.
KERNEL(1024, 1) permute_byte(PARAMETER(PermuteFar) p)
{
    const PermuteHead &h = p.head;
    const FarTable t = table_of(p);
    for (u32 column = blockIdx.x * blockDim.x + threadIdx.x; column < h.columns; column += gridDim.x * blockDim.x) {
        const Share s = {reinterpret_cast<u8 *>(h.origin + column), 0, h.positions, NO_HEAD, 1};
        u8 first = 0, v = 0;
        for (u32 i = 0, start = 0; i < h.positions; i++) {
            const u32 w = word(t, i);
            if (i == start)
                fetch(first, place(h, s, w));
            if (!(w & END_BIT)) {
                fetch(v, place(h, s, word(t, i + 1)));
                put(place(h, s, w), v);
                continue;
            }
            if (i < h.closed)
                put(place(h, s, w), first);
            start = i + 1;
        }
    }
}

// 1024 threads are what a launch with a barrier has; the others have fewer.
#define PERMUTE(name, V, blocks)                                                                                       \
    KERNEL(1024, blocks) permute_##name##_4k(PARAMETER(Permute4K) p)                                                   \
    {                                                                                                                  \
        permute<V>(p);                                                                                                 \
    }                                                                                                                  \
    KERNEL(1024, blocks) permute_##name##_32k(PARAMETER(Permute32K) p)                                                 \
    {                                                                                                                  \
        permute<V>(p);                                                                                                 \
    }                                                                                                                  \
    KERNEL(1024, blocks) permute_##name##_far(PARAMETER(PermuteFar) p)                                                 \
    {                                                                                                                  \
        permute<V>(p);                                                                                                 \
    }

PERMUTE(1, u8, 2)
PERMUTE(2, u16, 2)
PERMUTE(4, u32, 2)
PERMUTE(8, u64, 2)
PERMUTE(16, Vec16, 2)
PERMUTE(slice2, Slice<2>, 1)
PERMUTE(slice4, Slice<4>, 1)
