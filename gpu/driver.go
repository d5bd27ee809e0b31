package gpu

// #include <cuda.h>
import "C"

import (
	"reflect"

	"gorgonia.org/cu"
)

const (
	codeOutOfMemory = C.CUDA_ERROR_OUT_OF_MEMORY
	codeNoDevice    = C.CUDA_ERROR_NO_DEVICE
)

// failure names the driver function behind an error of gorgonia.org/cu, whose
// values are CUresult numbers of an unexported type. nil stays nil.
func failure(call string, err error) error {
	if err == nil {
		return nil
	}
	return result(call, C.CUresult(reflect.ValueOf(err).Int()))
}

// result is the one place that turns a CUresult into an error. Success is nil.
func result(call string, code C.CUresult) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	var name, text *C.char
	C.cuGetErrorName(code, &name)
	C.cuGetErrorString(code, &text)
	return &Error{Call: call, Code: int(code), Name: C.GoString(name), Text: C.GoString(text)}
}

// DriverVersion returns the CUDA version that the installed driver supports, as
// 1000*major + 10*minor: 12040 is CUDA 12.4.
func DriverVersion() (int, error) {
	if err := opened(); err != nil {
		return 0, err
	}
	return driverVersion()
}

func driverVersion() (int, error) {
	var version C.int
	if err := result("cuDriverGetVersion", C.cuDriverGetVersion(&version)); err != nil {
		return 0, err
	}
	return int(version), nil
}

// NumDevices returns how many devices CUDA_VISIBLE_DEVICES leaves to this process.
func NumDevices() (int, error) {
	if err := Available(); err != nil {
		return 0, err
	}
	return countDevices()
}

func countDevices() (int, error) {
	n, err := cu.NumDevices()
	return n, failure("cuDeviceGetCount", err)
}
