// reference.cu: gather.cu the obvious way, byte by byte, with divisions and a search
// from the start. It reads the same tables and is what gather.cu is tested against
// on the device; nothing else launches it.
#include "table.cuh"

DEVICE void copy_byte(const u8 *src, u8 *dst)
{
    u8 v;
    load(v, src);
    store(dst, v);
}

// copy_share copies a number's share of its run: whatever the kernels take for it, all numbers
// of a run together are its bytes.
DEVICE void copy_share(const u32 *table, const Segment &s, u32 number)
{
    const u32 *place = table + s.place;
    const u32 bytes = place[RUN_WORD], numbers = place[PER_RUN_WORD], share = (bytes + numbers - 1) / numbers;
    u32 run = number / numbers;
    const u32 from = number % numbers * share, to = smaller(from + share, bytes);
    Offsets o = {0, 0};
    for (u32 a = 0; a < (place[SHAPE_WORD] & 0xff); a++) {
        const u32 *axis = place + AXES_WORD + a * AXIS_WORDS;
        o.src += i64(run % axis[0]) * i64(word64(axis, 3));
        o.dst += i64(run % axis[0]) * i64(word64(axis, 5));
        run /= axis[0];
    }
    for (u32 i = from; i < to; i++)
        copy_byte(s.src + o.src + i, s.dst + o.dst + i);
}

template <typename R> DEVICE void copy_number(const u32 *table, u32 number)
{
    u32 i = 0;
    while (first_number<R>(table, i + 1) <= number)
        i++;
    const Segment s = read_segment<R>(table, i);
    if (s.strided)
        copy_share(table, s, number - s.first);
    else
        copy_byte(s.src + (number - s.first), s.dst + (number - s.first));
}

// copy_numbers takes any grid: the tests launch it on the grid of the kernel that it
// stands in for.
template <typename R> DEVICE void copy_numbers(const u32 *table)
{
    for (u32 number = blockIdx.x * blockDim.x + threadIdx.x; number < table[BYTES_WORD]; number += gridDim.x * blockDim.x)
        copy_number<R>(table, number);
}

KERNEL(512, 2) gather_byte_4k(PARAMETER(Table4K) table)
{
    copy_numbers<Records>(table.word);
}

KERNEL(512, 2) gather_byte_32k(PARAMETER(Table32K) table)
{
    copy_numbers<Records>(table.word);
}

KERNEL(512, 2) gather_byte_narrow(PARAMETER(Table32K) table)
{
    copy_numbers<NarrowRecords>(table.word);
}
