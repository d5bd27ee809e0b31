package libcuda

// #include "open.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Stage says how far [Open] came.
type Stage int

// The stages at which opening the driver can fail.
const (
	NoLibrary  Stage = C.GOFLAT_NO_LIBRARY  // libcuda.so.1 could not be loaded
	NotCUDA    Stage = C.GOFLAT_NOT_CUDA    // it was loaded but has no cuInit
	InitFailed Stage = C.GOFLAT_INIT_FAILED // cuInit returned an error
)

// OpenError is why the driver cannot be used by this process.
type OpenError struct {
	Stage  Stage
	Code   int    // CUresult of cuInit where Stage is InitFailed
	Detail string // the dynamic loader's text (NoLibrary) or the name of Code (InitFailed)
}

func (e *OpenError) Error() string {
	switch e.Stage {
	case NoLibrary:
		return "load libcuda.so.1: " + e.Detail
	case NotCUDA:
		return "libcuda.so.1 has no cuInit"
	default:
		return fmt.Sprintf("cuInit returned %d %s", e.Code, e.Detail)
	}
}

// Open loads libcuda.so.1 and initialises it, once for the process: later calls
// return the first call's answer. It is safe for concurrent use. A process that
// opened the driver must not use it in a forked child.
func Open() error {
	// A typed nil in an error is not nil, hence the branch.
	if err := open(); err != nil {
		return err
	}
	return nil
}

var open = sync.OnceValue(func() *OpenError {
	var code C.int
	var why [512]C.char
	stage := C.goflat_libcuda_open(&code, &why[0], C.size_t(len(why)))
	if stage == C.GOFLAT_OPENED {
		return nil
	}
	return &OpenError{
		Stage:  Stage(stage),
		Code:   int(code),
		Detail: C.GoString((*C.char)(unsafe.Pointer(&why[0]))),
	}
})
