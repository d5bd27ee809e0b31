// cast_f16.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(f16, Float16)
