// cast_e4m3.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(e4m3, Float8E4M3)
