package launch

import (
	"math/bits"

	"github.com/goflat/goflat/flatten"
)

// runs is a strided segment with addresses: contiguous bytes, repeated along axes,
// the outermost first. One launch takes it whole.
type runs struct {
	dst, src uint64 // of the first run
	bytes    uint32 // of a run
	payload  uint64 // bytes of all runs
	axes     []flatten.Axis
	room     [flatten.MaxAxes]flatten.Axis // behind axes
}

// wholeRunBytes is the length from which a warp takes a run at a time: 16 bytes for
// each of its threads, twice. Shorter ones are copied a unit a thread.
const wholeRunBytes = 1024

// unit returns the log2 of the largest access, up to 16 bytes, that all addresses
// and the length of the runs allow.
func (r *runs) unit() uint32 {
	all := r.dst | r.src | uint64(r.bytes)
	for i := range r.axes {
		all |= uint64(r.axes[i].SrcStep) | uint64(r.axes[i].DstStep)
	}
	return uint32(min(bits.TrailingZeros64(all), 4))
}

// shape returns the word of a place that says how to copy.
func (r *runs) shape() uint32 {
	shape := uint32(len(r.axes)) | r.unit()<<8
	if r.bytes >= wholeRunBytes {
		shape |= 1 << 16
	}
	return shape
}
