package bridge

import (
	"errors"
	"fmt"

	"github.com/goflat/goflat/flatten"
)

// wireError is an error on its way to Python.
type wireError struct {
	code       string
	key, batch int
	got, want  string
}

func (e *wireError) Error() string {
	return fmt.Sprintf("%s|%d|%d|%s|%s", e.code, e.key, e.batch, e.got, e.want)
}

// wire gives err the form that goflat._errors reads.
func wire(err error) error {
	if err == nil {
		return nil
	}
	code, m := mismatch(err)
	return &wireError{code, m.Key, m.Batch, m.Got, m.Want}
}

// mismatch is the code of err and where it happened.
func mismatch(err error) (code string, m flatten.Mismatch) {
	var shape *flatten.ShapeError
	var dtype *flatten.DTypeError
	var device *flatten.DeviceError
	var overlap *flatten.OverlapError
	switch {
	case errors.As(err, &shape):
		return "SHAPE", flatten.Mismatch(*shape)
	case errors.As(err, &dtype):
		return "DTYPE", flatten.Mismatch(*dtype)
	case errors.As(err, &device):
		return "DEVICE", flatten.Mismatch(*device)
	case errors.As(err, &overlap):
		return "OVERLAP", flatten.Mismatch(*overlap)
	}
	var ready *wireError
	if errors.As(err, &ready) {
		return ready.code, flatten.Mismatch{Key: ready.key, Batch: ready.batch, Got: ready.got, Want: ready.want}
	}
	return "INTERNAL", flatten.Mismatch{Key: -1, Batch: -1, Got: err.Error()}
}

// recovered turns a panic into an error, so that a broken invariant raises in Python instead of ending the process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &wireError{"INTERNAL", -1, -1, fmt.Sprint(p), ""}
	}
}
