package flatten

import "strconv"

// Device is where an entry's memory lives, as DLPack's DLDevice.
type Device struct {
	Type  int32 // DLDeviceType, for example DeviceCPU
	Index int32 // which one of its type
}

// The device types goflat itself handles; others pass through as numbers.
const (
	DeviceCPU  int32 = 1
	DeviceCUDA int32 = 2
)

// deviceNames are the types of dlpack.h 1.1, named as torch does where it has a name.
var deviceNames = map[int32]string{
	DeviceCPU: "cpu", DeviceCUDA: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "mps", 9: "vpi",
	10: "rocm", 11: "rocm_host", 12: "ext_dev", 13: "cuda_managed", 14: "xpu", 15: "webgpu", 16: "hexagon",
	17: "maia", 18: "trn",
}

// String is "cpu" for the first CPU device and "cuda:0" and the like for all others.
func (d Device) String() string {
	if d == (Device{Type: DeviceCPU}) {
		return "cpu"
	}
	name, ok := deviceNames[d.Type]
	if !ok {
		name = "device" + strconv.Itoa(int(d.Type))
	}
	return name + ":" + strconv.Itoa(int(d.Index))
}
