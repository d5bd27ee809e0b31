// cast_e5m2.cu: the kernels of cast.cuh to one type.
#include "cast.cuh"

CAST(e5m2, Float8E5M2)
