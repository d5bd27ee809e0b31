package flatten

import (
	"errors"
	"fmt"
	"testing"
)

func TestErrorsAreKinds(t *testing.T) {
	kinds := []error{ErrShape, ErrDType, ErrDevice, ErrOverlap}
	for i, err := range []error{
		&ShapeError{Key: -1, Batch: -1, Got: "x", Want: "y"},
		&DTypeError{Key: 0, Batch: -1, Name: "p2", Got: "x", Want: "y"},
		&DeviceError{Key: -1, Batch: 2, Got: "x", Want: "y"},
		&OverlapError{Key: 1, Batch: 2, Name: `a"b`, Got: "x", Want: "y"},
	} {
		wrapped := fmt.Errorf("flatten: %w", err)
		for j, kind := range kinds {
			if got := errors.Is(wrapped, kind); got != (i == j) {
				t.Errorf("%v is %v: got %v", err, kind, got)
			}
		}
	}
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		"goflat: shape: got x, want y":                        &ShapeError{Key: -1, Batch: -1, Got: "x", Want: "y"},
		`goflat: dtype: key "p2": got x, want y`:              &DTypeError{Key: 0, Batch: -1, Name: "p2", Got: "x", Want: "y"},
		"goflat: device: batch 2: got x, want y":              &DeviceError{Key: -1, Batch: 2, Got: "x", Want: "y"},
		`goflat: overlap: key "a\"b", batch 2: got x, want y`: &OverlapError{Key: 1, Batch: 2, Name: `a"b`, Got: "x", Want: "y"},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
