package gpu

import (
	"runtime"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/kernels"
)

// LoadReference returns Gather by the kernels of reference.cu, for one device, and
// what unloads them.
func LoadReference(ordinal int) (gather func(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error, unload func(), err error) {
	on, err := use(ordinal)
	if err != nil {
		return nil, nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(on.context)
	if err != nil {
		return nil, nil, err
	}
	module, err := cu.LoadData(kernels.Reference)
	reference := *on
	for k := range launch.NumKernels {
		name := "gather_byte_4k"
		if k.Words() == launch.LargeWords {
			name = "gather_byte_32k"
		}
		if err == nil {
			var f cu.Function
			f, err = module.Function(name)
			reference.functions[k] = functionHandle(f)
		}
	}
	if err = s.leave(err); err != nil {
		return nil, nil, err
	}
	gather = func(stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
		return gatherOn(&reference, ordinal, stream, plan, dst, src)
	}
	return gather, func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if s, err := enter(on.context); err == nil {
			_ = s.leave(module.Unload())
		}
	}, nil
}

// Loaded reports whether a device is in use.
func Loaded(ordinal int) bool {
	all, err := devices()
	return err == nil && all[ordinal].loaded.Load() != nil
}

// Unload takes a device back to the state before its first use.
func Unload(ordinal int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if all, err := devices(); err == nil && all[ordinal].loaded.Load() != nil {
		all[ordinal].loaded.Swap(nil).unload()
	}
}
