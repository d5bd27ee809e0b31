package flatten

import (
	"errors"
	"strconv"
	"strings"
)

// The kinds of refusal, for errors.Is. Each is one thing that a caller can mend.
var (
	ErrShape   = errors.New("goflat: shapes do not fit")
	ErrDType   = errors.New("goflat: dtypes do not fit")
	ErrDevice  = errors.New("goflat: devices do not fit")
	ErrOverlap = errors.New("goflat: memory overlaps")
)

// Mismatch is what every error of this package carries: where, what was there
// and what should have been.
type Mismatch struct {
	Key   int    // index of the key, -1 where no single key is at fault
	Batch int    // index of the batch, -1 where no single batch is at fault
	Name  string // label of the key for messages, "" where Key is -1
	Got   string
	Want  string
}

// ShapeError says that a shape, a stride list, a dim or a count is wrong.
type ShapeError Mismatch

// DTypeError says that an entry has another element type than the job.
type DTypeError Mismatch

// DeviceError says that an entry lives on another device than its batch.
type DeviceError Mismatch

// OverlapError says that an output shares bytes with an entry, with another
// output or with itself.
type OverlapError Mismatch

func (e *ShapeError) Error() string   { return (*Mismatch)(e).text("shape") }
func (e *DTypeError) Error() string   { return (*Mismatch)(e).text("dtype") }
func (e *DeviceError) Error() string  { return (*Mismatch)(e).text("device") }
func (e *OverlapError) Error() string { return (*Mismatch)(e).text("overlap") }

// Is reports true for ErrShape.
func (e *ShapeError) Is(target error) bool { return target == ErrShape }

// Is reports true for ErrDType.
func (e *DTypeError) Is(target error) bool { return target == ErrDType }

// Is reports true for ErrDevice.
func (e *DeviceError) Is(target error) bool { return target == ErrDevice }

// Is reports true for ErrOverlap.
func (e *OverlapError) Is(target error) bool { return target == ErrOverlap }

// text is `goflat: shape: key "p2", batch 3: got (5, 4), want (*, 8)`.
func (m *Mismatch) text(kind string) string {
	parts := make([]string, 0, 2)
	if m.Key >= 0 {
		parts = append(parts, "key "+strconv.Quote(m.Name))
	}
	if m.Batch >= 0 {
		parts = append(parts, "batch "+strconv.Itoa(m.Batch))
	}
	where := strings.Join(parts, ", ")
	if where != "" {
		where += ": "
	}
	return "goflat: " + kind + ": " + where + "got " + m.Got + ", want " + m.Want
}

// shapeText writes a shape as Python does: (), (5,), (5, 4).
func shapeText(shape []int64) string {
	return extentsText(shape, -1)
}

// extentsText is shapeText with a star at position free, which may be anything.
func extentsText(shape []int64, free int) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = strconv.FormatInt(n, 10)
		if i == free {
			parts[i] = "*"
		}
	}
	if len(parts) == 1 {
		return "(" + parts[0] + ",)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}
