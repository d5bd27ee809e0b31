package gpu

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/goflat/goflat/gpu/internal/libcuda"
)

// minDriver is the oldest CUDA version whose driver compiles the kernels' PTX, ISA
// 8.1 of NVRTC 12.1, and the release that brought it.
const (
	minDriver        = 12010
	minDriverRelease = "R530"
)

// Available returns nil if CUDA can be used in this process and otherwise an
// [UnavailableError] whose text says what to do. The first call opens the driver;
// later ones return the same answer at once. It is safe for concurrent use.
func Available() error { return available() }

var available = sync.OnceValue(func() error {
	if err := opened(); err != nil {
		return err
	}
	version, err := driverVersion()
	if err != nil {
		return err
	}
	if err := checkVersion(version); err != nil {
		return err
	}
	devices, err := countDevices()
	if err != nil {
		return err
	}
	return checkDevices(devices, os.LookupEnv)
})

// checkDevices refuses an initialised driver that shows no device.
func checkDevices(devices int, lookup lookupEnv) error {
	if devices > 0 {
		return nil
	}
	return &UnavailableError{
		Why:    "the driver lists no device",
		Advice: initAdvice(codeNoDevice, lookup),
	}
}

// checkVersion refuses a driver that cannot load the kernels.
func checkVersion(version int) error {
	if version >= minDriver {
		return nil
	}
	return &UnavailableError{
		Why: fmt.Sprintf("the driver supports CUDA %d.%d, goflat needs %d.%d",
			version/1000, version%1000/10, minDriver/1000, minDriver%1000/10),
		Advice: "update the NVIDIA driver to " + minDriverRelease + " or later",
	}
}

// opened opens the driver and explains a failure.
func opened() error {
	err := libcuda.Open()
	if err == nil {
		return nil
	}
	var failed *libcuda.OpenError
	if !errors.As(err, &failed) {
		return err
	}
	return explain(failed, os.LookupEnv)
}

// lookupEnv is os.LookupEnv outside tests.
type lookupEnv func(name string) (value string, set bool)

// explain turns a failed opening into a text that says what to do.
func explain(failed *libcuda.OpenError, lookup lookupEnv) *UnavailableError {
	switch failed.Stage {
	case libcuda.NoLibrary:
		return &UnavailableError{
			Why:    "libcuda.so.1 was not loaded (" + failed.Detail + ")",
			Advice: "install the NVIDIA driver; in a container, start it with GPU access (--gpus all)",
		}
	case libcuda.NotCUDA:
		return &UnavailableError{
			Why:    "libcuda.so.1 has no cuInit",
			Advice: "remove the other library of that name from the library path",
		}
	default:
		name := failed.Detail
		if name == "" {
			name = "unknown error"
		}
		return &UnavailableError{
			Why:    fmt.Sprintf("cuInit returned %d (%s)", failed.Code, name),
			Advice: initAdvice(failed.Code, lookup),
		}
	}
}

// initAdvice says what to do about a CUresult of cuInit. Numbers, since the CUDA 12
// headers have no names for some of those that drivers return.
func initAdvice(code int, lookup lookupEnv) string {
	switch code {
	case 2:
		return "free memory on the host or the device"
	case 34:
		return "the toolkit's stub library was found first: take its folder off LD_LIBRARY_PATH"
	case 35, 36:
		return "update the NVIDIA driver to " + minDriverRelease + " or later"
	case codeNoDevice:
		if devices, hidden := hiddenBy(lookup); hidden {
			return devices + " hides every device: unset it or name one"
		}
		return "check that nvidia-smi lists a device; in a container, start it with GPU access (--gpus all)"
	case 46:
		return "another process may hold the device exclusively: see nvidia-smi"
	case 802:
		return "start the fabric manager (nvidia-fabricmanager) or wait until it is up"
	case 803, 804:
		return "the driver's library and kernel module differ in version: reboot after a driver update, or remove the cuda-compat package"
	default:
		return "check that nvidia-smi works and that /dev/nvidia-uvm exists; the kernel module may need a reload or the machine a reboot"
	}
}

// hiddenBy reports whether the environment hides every device, and by what.
func hiddenBy(lookup lookupEnv) (setting string, hidden bool) {
	const name = "CUDA_VISIBLE_DEVICES"
	value, set := lookup(name)
	if !set || value != "" && value != "-1" {
		return "", false
	}
	return fmt.Sprintf("%s=%q", name, value), true
}
