// cast_f64.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(f64, Float64)
