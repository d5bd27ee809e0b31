// reference.cu: gather.cu the obvious way, byte by byte, with divisions and a search
// from the start. It reads the same tables and is what gather.cu is tested against
// on the device; nothing else launches it.
#include "table.cuh"

DEVICE void copy_byte(const u32 *table, u32 number)
{
    u32 i = 0;
    while (first_number(table, i + 1) <= number)
        i++;
    const Segment s = read_segment(table, i);
    i64 src = number - s.first, dst = src;
    if (s.strided) {
        const u32 *place = table + s.place;
        u32 run = u32(src) / place[RUN_WORD];
        src = dst = u32(src) % place[RUN_WORD];
        for (u32 a = 0; a < (place[SHAPE_WORD] & 0xff); a++) {
            const u32 *axis = place + AXES_WORD + a * AXIS_WORDS;
            src += i64(run % axis[0]) * i64(word64(axis, 3));
            dst += i64(run % axis[0]) * i64(word64(axis, 5));
            run /= axis[0];
        }
    }
    u8 v;
    load(v, s.src + src);
    store(s.dst + dst, v);
}

// copy_bytes takes any grid: the tests launch it on the grid of the kernel that it
// stands in for.
DEVICE void copy_bytes(const u32 *table)
{
    for (u32 number = blockIdx.x * blockDim.x + threadIdx.x; number < table[BYTES_WORD]; number += gridDim.x * blockDim.x)
        copy_byte(table, number);
}

KERNEL(512, 2) gather_byte_4k(PARAMETER(Table4K) table)
{
    copy_bytes(table.word);
}

KERNEL(512, 2) gather_byte_32k(PARAMETER(Table32K) table)
{
    copy_bytes(table.word);
}
