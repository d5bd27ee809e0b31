// reference.cu: gather.cu the obvious way, one thread a byte, divisions and a search
// from the start. It reads the same tables and is what gather.cu is tested against
// on the device; nothing else launches it.
#include "table.cuh"

DEVICE void copy_byte(const u32 *table, u32 number)
{
    u32 i = 0;
    while (first_number(table, i + 1) <= number)
        i++;
    const Segment s = read_segment(table, i);
    u32 at = number - s.first;
    if (!s.strided) {
        s.dst[at] = s.src[at];
        return;
    }
    const u32 *place = table + s.place;
    u32 run = at / place[RUN_WORD];
    i64 src = at % place[RUN_WORD], dst = src;
    for (u32 a = 0; a < (place[SHAPE_WORD] & 0xff); a++) {
        const u32 *axis = place + AXES_WORD + a * AXIS_WORDS;
        src += i64(run % axis[0]) * i64(word64(axis, 3));
        dst += i64(run % axis[0]) * i64(word64(axis, 5));
        run /= axis[0];
    }
    s.dst[dst] = s.src[src];
}

KERNEL(256, 4) gather_byte_4k(PARAMETER(Table4K) table)
{
    u32 number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number < table.word[BYTES_WORD])
        copy_byte(table.word, number);
}

KERNEL(256, 4) gather_byte_32k(PARAMETER(Table32K) table)
{
    u32 number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number < table.word[BYTES_WORD])
        copy_byte(table.word, number);
}
