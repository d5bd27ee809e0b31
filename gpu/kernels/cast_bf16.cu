// cast_bf16.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(bf16, BFloat16)
