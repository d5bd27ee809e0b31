package gpu

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/kernels"
)

// minCapability is the oldest compute capability that the PTX targets and that takes
// 32,764 bytes of kernel parameters.
const minCapability = 7

// A device is what goflat keeps on one device, from the first gather there to the end
// of the process: a reference to the primary context, and the kernels loaded into it.
// A program that resets the device in between takes both away and must not gather again.
type device struct {
	ordinal int
	loading sync.Mutex
	loaded  atomic.Pointer[loaded]
	// permuter is of the same kind, from the first permutation on.
	permuter atomic.Pointer[permuter]
	// casters are of the same kind, from the first cast between two types on.
	casters [flatten.NumFloats][flatten.NumFloats]atomic.Pointer[caster]
}

// loaded is a device in use. It does not change.
type loaded struct {
	device          cu.Device
	context         uintptr // CUcontext, the primary one or that of a [Context]
	module          cu.Module
	multiprocessors int
	functions       [launch.NumKernels]uintptr // CUfunction
}

// listed says that devices has run, and so has opened the driver or failed to.
var listed atomic.Bool

var devices = sync.OnceValues(func() ([]device, error) {
	defer listed.Store(true)
	n, err := NumDevices()
	all := make([]device, n)
	for i := range all {
		all[i].ordinal = i
	}
	return all, err
})

// use returns a device ready for launches; the first call loads it. An error is not
// kept: the next call tries again.
func use(ordinal int) (*loaded, error) {
	d, err := find(ordinal)
	if err != nil {
		return nil, err
	}
	return d.use()
}

// find returns a device of this process.
func find(ordinal int) (*device, error) {
	all, err := devices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= len(all) {
		return nil, &UnavailableError{
			Why:    fmt.Sprintf("there is no device %d", ordinal),
			Advice: fmt.Sprintf("use one of the %d that this process sees", len(all)),
		}
	}
	return &all[ordinal], nil
}

func (d *device) use() (*loaded, error) {
	if l := d.loaded.Load(); l != nil {
		return l, nil
	}
	d.loading.Lock()
	defer d.loading.Unlock()
	if l := d.loaded.Load(); l != nil {
		return l, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := relaxed(func() error {
		l, err := load(d.ordinal)
		if err == nil {
			d.loaded.Store(l)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load kernels on device %d: %w", d.ordinal, err)
	}
	return d.loaded.Load(), nil
}

// load retains a device's primary context and loads the kernels into it, or leaves
// nothing behind.
func load(ordinal int) (l *loaded, err error) {
	dev, err := cu.GetDevice(ordinal)
	if err != nil {
		return nil, failure("cuDeviceGet", err)
	}
	l = &loaded{device: dev}
	if l.multiprocessors, err = inspect(dev); err != nil {
		return nil, err
	}
	context, err := dev.RetainPrimaryCtx()
	if err != nil {
		return nil, failure("cuDevicePrimaryCtxRetain", err)
	}
	l.context = contextHandle(context)
	if err := l.loadKernels(); err != nil {
		l.unload()
		return nil, err
	}
	return l, nil
}

// unload gives back what load took. It reports nothing: it follows a failure, which is
// what to report.
func (l *loaded) unload() {
	l.unloadModule()
	_ = l.device.ReleasePrimaryCtx()
}

// unloadModule is unload for a context that somebody else keeps.
func (l *loaded) unloadModule() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s, err := enter(l.context); err == nil {
		if l.module != (cu.Module{}) {
			_ = l.module.Unload()
		}
		_ = s.leave(nil)
	}
}

// inspect returns a device's number of multiprocessors, and refuses devices that
// cannot run the kernels.
func inspect(dev cu.Device) (multiprocessors int, err error) {
	major, err := dev.Attribute(cu.ComputeCapabilityMajor)
	if err != nil {
		return 0, failure("cuDeviceGetAttribute", err)
	}
	if major < minCapability {
		return 0, &UnavailableError{
			Why:    fmt.Sprintf("device %d has compute capability %d.x, goflat needs %d.0", int(dev), major, minCapability),
			Advice: "use a device of the Volta generation or later",
		}
	}
	multiprocessors, err = dev.Attribute(cu.MultiprocessorCount)
	return multiprocessors, failure("cuDeviceGetAttribute", err)
}

// loadKernels fills module and functions.
func (l *loaded) loadKernels() error {
	s, err := enter(l.context)
	if err != nil {
		return err
	}
	if l.module, err = cu.LoadData(kernels.Gather); err != nil {
		return s.leave(failure("cuModuleLoadData", err))
	}
	return s.leave(l.findFunctions())
}

func (l *loaded) findFunctions() (err error) {
	for k := range launch.NumKernels {
		if l.functions[k], err = kernelOf(l.module, k.String(), k.Threads()); err != nil {
			return err
		}
	}
	return nil
}

// kernelOf returns a kernel that runs so many threads a block.
func kernelOf(module cu.Module, name string, threads uint32) (uintptr, error) {
	f, err := module.Function(name)
	if err != nil {
		return 0, failure("cuModuleGetFunction", err)
	}
	// Where modules load lazily, asking for an attribute loads the kernel now, under
	// the relaxed capture mode, rather than at its first launch.
	most, err := f.Attribute(cu.FnMaxThreadsPerBlock)
	if err != nil {
		return 0, failure("cuFuncGetAttribute", err)
	}
	if most < int(threads) {
		return 0, fmt.Errorf("kernel %s runs %d threads a block, want %d", name, most, threads)
	}
	return functionHandle(f), nil
}
