package bridge

// #include "gradient.h"
import "C"

// GradientCutter appends to the list at the given address what backward calls to cut a gradient, a Python function
// (gradient.h). It returns 1, or 0 where there is no memory for it.
func GradientCutter(list int64) int64 {
	return int64(C.gf_gradient_cutter(C.uint64_t(list)))
}
