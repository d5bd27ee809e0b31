package flatten

// View is the shape of a tensor and the way its elements lie in memory.
// The planner reads it and never keeps it.
type View struct {
	Shape   []int64 // extent of each dim, in elements
	Strides []int64 // bytes from one element of a dim to the next, also 0 or negative; nil means contiguous, row-major
}

// Entry is the tensor of one key and one batch, without its address.
type Entry struct {
	View
	DType  DType
	Device Device
}

// Span is the byte range [lo, hi) that the view touches, relative to the
// address of its element 0: lo is 0 or negative, hi is the end of the highest
// element of elemBytes bytes. A view without elements spans (0, 0). The byte
// slices that Apply and Execute take are exactly these ranges.
//
// The view must pass the checks of NewLayout or Build, else the result may wrap.
func (v View) Span(elemBytes int64) (lo, hi int64) {
	lo, hi, _ = v.span(elemBytes)
	return lo, hi
}

// span is Span; ok is false where an offset does not fit in 63 bits or the
// strides do not fit the shape.
func (v View) span(elemBytes int64) (lo, hi int64, ok bool) {
	ok = v.Strides == nil || len(v.Strides) == len(v.Shape)
	if v.empty() {
		return 0, 0, ok
	}
	hi = elemBytes
	packed := elemBytes
	for i := len(v.Shape) - 1; i >= 0 && ok; i-- {
		var reach int64
		reach, ok = mul(v.Shape[i]-1, v.stride(i, packed))
		lo += min(reach, 0)
		hi += max(reach, 0)
		ok = ok && lo <= 0 && hi >= 0 && hi-lo >= 0
		packed *= v.Shape[i] // may wrap only where reach of the next dim does not fit either
	}
	return lo, hi, ok
}

// empty reports whether the view has no elements.
func (v View) empty() bool {
	for _, n := range v.Shape {
		if n == 0 {
			return true
		}
	}
	return false
}

// stride is the step of dim i in bytes; packed is what it is in a contiguous view.
func (v View) stride(i int, packed int64) int64 {
	if v.Strides == nil {
		return packed
	}
	return v.Strides[i]
}
