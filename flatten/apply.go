package flatten

import "slices"

// Apply runs a plan the plainest way: segment by segment, run by run. It is
// the meaning of a plan, and what Execute, the GPU kernels and the Python tests
// are compared with.
//
// dst has one slice per batch and src one per entry, each of them the bytes
// that its View spans, lowest address first; slices of entries and outputs
// without elements may be nil. They must not overlap. Apply panics where a
// slice is too short.
func Apply(dst, src [][]byte, p *Plan) {
	for i := range p.Segments {
		s := &p.Segments[i]
		// Clipped, or slicing would reach beyond the end of a slice.
		s.apply(slices.Clip(dst[s.Batch]), slices.Clip(src[s.Entry]), s.Axes, s.Dst, s.Src)
	}
}

// apply moves the bytes at dst[to:] and src[from:] for every turn of axes.
func (s *Segment) apply(dst, src []byte, axes []Axis, to, from int64) {
	if len(axes) == 0 {
		copy(dst[to:to+s.Bytes], src[from:from+s.Bytes])
		return
	}
	for i := range axes[0].N {
		s.apply(dst, src, axes[1:], to+i*axes[0].DstStep, from+i*axes[0].SrcStep)
	}
}
