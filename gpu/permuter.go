package gpu

// #include "permute.h"
import "C"

import (
	"fmt"
	"runtime"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/kernels"
)

// cooperativeLaunch is CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH.
const cooperativeLaunch = cu.DeviceAttribute(C.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)

// A permuter is what [Permute] keeps on one device, from the first call there to the
// end of the process. Apart from its memory it does not change.
type permuter struct {
	on        *loaded
	module    cu.Module
	functions [launch.NumPermuteKernels][launch.NumTablePlaces]uintptr // CUfunction
	resident  [launch.NumPermuteKernels]uint32                         // blocks that the device runs at once, of launch.BarrierThreads; 0 without cooperative launches
	memory    *tableMemory
}

// usePermuter returns a device ready for permutations; the first call loads it.
func usePermuter(ordinal int) (*permuter, error) {
	d, err := find(ordinal)
	if err != nil {
		return nil, err
	}
	on, err := d.use()
	if err != nil {
		return nil, err
	}
	return d.usePermuter(on)
}

// usePermuter is usePermuter of the package for kernels that are loaded.
func (d *device) usePermuter(on *loaded) (*permuter, error) {
	if p := d.permuter.Load(); p != nil {
		return p, nil
	}
	d.loading.Lock()
	defer d.loading.Unlock()
	if p := d.permuter.Load(); p != nil {
		return p, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := relaxed(func() error {
		p, err := loadPermuter(on)
		if err == nil {
			d.permuter.Store(p)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load permutation kernels on device %d: %w", d.ordinal, err)
	}
	return d.permuter.Load(), nil
}

// loadPermuter loads the kernels, or leaves nothing behind.
func loadPermuter(on *loaded) (*permuter, error) {
	cooperative, err := on.device.Attribute(cooperativeLaunch)
	if err != nil {
		return nil, failure("cuDeviceGetAttribute", err)
	}
	s, err := enter(on.context)
	if err != nil {
		return nil, err
	}
	p := &permuter{on: on, memory: newTableMemory()}
	if p.module, err = cu.LoadData(kernels.Permute); err != nil {
		return nil, s.leave(failure("cuModuleLoadData", err))
	}
	if err := s.leave(p.findFunctions(cooperative != 0)); err != nil {
		p.unload()
		return nil, err
	}
	return p, nil
}

// unload gives back what the permuter has. It reports nothing: it follows a failure,
// which is what to report.
func (p *permuter) unload() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s, err := enter(p.on.context); err == nil {
		p.memory.free()
		_ = p.module.Unload()
		_ = s.leave(nil)
	}
}

func (p *permuter) findFunctions(cooperative bool) error {
	for k := range launch.NumPermuteKernels {
		for place := range launch.NumTablePlaces {
			f, err := p.module.Function(k.String() + place.Suffix())
			if err != nil {
				return failure("cuModuleGetFunction", err)
			}
			p.functions[k][place] = functionHandle(f)
			// Where modules load lazily, this loads the kernel now.
			blocks, err := value(C.goflat_resident(C.uintptr_t(functionHandle(f)), C.uint32_t(launch.BarrierThreads)))
			if err != nil {
				return err
			}
			if blocks == 0 {
				return fmt.Errorf("kernel %v%s does not run with %d threads a block", k, place.Suffix(), launch.BarrierThreads)
			}
			if all := uint32(blocks) * uint32(p.on.multiprocessors); cooperative && (place == 0 || all < p.resident[k]) {
				p.resident[k] = all
			}
		}
	}
	return nil
}
