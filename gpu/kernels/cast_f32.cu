// cast_f32.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(f32, Float32)
