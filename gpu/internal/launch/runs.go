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

// The lengths that decide how a run is moved.
const (
	// wholeRunBytes is the length from which a warp takes a run or a piece of it at a time:
	// 16 bytes for each of its threads, twice. Shorter ones are copied a slot a thread.
	wholeRunBytes = 1024
	// pieceBytes: whole runs are cut into pieces of nearly the same length, up to this,
	// one for each warp: one round of four loads.
	pieceBytes = 2 << 10
	// slotBytes are what a thread takes of a run at a time: aligned bytes of the destination,
	// which a run that is not aligned itself fills in part at either end.
	slotBytes = 16
)

// tinyRuns reports whether runs of a length and log2 of a unit are copied a unit at a time: most of
// their slots would be filled in part.
func tinyRuns(bytes int64, unit uint32) bool { return bytes < 64 && unit >= 2 }

// unitOf returns the log2 of the largest access, up to 16 bytes, that all addresses
// and the length of runs allow.
func unitOf(dst, src uint64, bytes int64, axes []flatten.Axis) uint32 {
	all := dst | src | uint64(bytes)
	for i := range axes {
		all |= uint64(axes[i].SrcStep) | uint64(axes[i].DstStep)
	}
	return uint32(min(bits.TrailingZeros64(all), 4))
}

func (r *runs) unit() uint32 { return unitOf(r.dst, r.src, int64(r.bytes), r.axes) }

// perRun returns how many numbers a run has in a table of a form. Slots of a run that is
// not aligned are as many as it can touch.
func (r *runs) perRun(f form) uint32 {
	switch f {
	case piecesForm:
		return (r.bytes + pieceBytes - 1) / pieceBytes
	case vectorsForm:
		return r.bytes / slotBytes
	case slotsForm:
		return (r.bytes + 2*(slotBytes-1)) / slotBytes
	case unitsForm:
		return r.bytes >> r.unit()
	}
	return r.bytes
}

// numbers returns how many numbers the segment has in a table of a form.
func (r *runs) numbers(f form) uint64 { return r.payload / uint64(r.bytes) * uint64(r.perRun(f)) }

// shape returns the word of a place that says how to copy.
func (r *runs) shape(f form) uint32 {
	shape := uint32(len(r.axes)) | r.unit()<<8
	switch {
	case f == piecesForm:
		perRun := r.perRun(f)
		shape |= (r.bytes + perRun*16 - 1) / (perRun * 16) << 16
	case f == mixedForm && r.bytes >= wholeRunBytes:
		shape |= 1 << 16
	}
	return shape
}
