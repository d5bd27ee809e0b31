package gpu

import (
	"errors"
	"fmt"
)

// Sentinels by what a caller can do about an error; compare with errors.Is.
var (
	// ErrNoDevice: CUDA cannot be used in this process. Stay on the CPU.
	ErrNoDevice = errors.New("no usable CUDA device")
	// ErrOutOfMemory: the device's memory does not suffice. Free some, try again.
	ErrOutOfMemory = errors.New("out of CUDA memory")
	// ErrCapturing: this cannot become part of a CUDA graph. Copy instead.
	ErrCapturing = errors.New("the stream is being captured")
)

// UnavailableError is why CUDA cannot be used in this process. It matches
// [ErrNoDevice].
type UnavailableError struct {
	Why    string // what was found
	Advice string // what to do about it
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrNoDevice, e.Why, e.Advice)
}

// Is reports whether target is [ErrNoDevice].
func (e *UnavailableError) Is(target error) bool { return target == ErrNoDevice }

// Error is a driver function's failure.
type Error struct {
	Call string // the driver's function, such as "cuLaunchKernel"
	Code int    // its CUresult
	Name string // "CUDA_ERROR_...", empty if the driver does not know the code
	Text string // the driver's sentence
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("[%s][%d] unknown error", e.Call, e.Code)
	}
	return fmt.Sprintf("[%s][%s] %s", e.Call, e.Name, e.Text)
}

// Is reports whether target is the sentinel of e's code.
func (e *Error) Is(target error) bool {
	return target == ErrOutOfMemory && e.Code == codeOutOfMemory
}
