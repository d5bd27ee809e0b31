// cast.cu: the kernels of cast.cuh for one pair of types, which generate.py says.
#include "cast.cuh"

#define CAST_OF(S, T) CAST(S, T)

CAST_OF(SOURCE, TARGET)
