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
		switch { // the words behind a table are there, though not in use
		case k.Narrow():
			name = "gather_byte_narrow"
		case k.Words() > launch.SmallWords:
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
	d, err := find(ordinal)
	if err != nil {
		return
	}
	if p := d.permuter.Swap(nil); p != nil {
		p.unload()
	}
	for from := range d.casters {
		for to := range d.casters[from] {
			if c := d.casters[from][to].Swap(nil); c != nil {
				c.unload()
			}
		}
	}
	if l := d.loaded.Swap(nil); l != nil {
		l.unload()
	}
}

// PreparePermute uploads the tables of a permutation once and returns what does the
// rest. Without a barrier all chains are whole.
func PreparePermute(barrier bool, device int, stream uintptr, p *flatten.Permutation) (launched func() error, done func() error, err error) {
	on, err := usePermuter(device)
	if err != nil {
		return nil, nil, err
	}
	c := new(permuteCall)
	c.launch = c.enqueueLaunch
	c.on, c.stream = on, stream
	c.options = launch.PermuteOptions{Resident: &on.resident}
	if !barrier {
		c.options.Resident = new([launch.NumPermuteKernels]uint32)
	}
	c.tables.Plan(p, &c.options)
	memory, err := on.memory.takeDevice(c.bytes(), stream)
	if err != nil {
		return nil, nil, err
	}
	if err := c.fillIn(memory); err != nil {
		return nil, nil, err
	}
	launched = func() error {
		return c.tables.Launches(&memory.word, uint64(memory.address)+tableOffset, c.launch)
	}
	return launched, func() error { return on.memory.giveBack(&on.memory.device, memory, stream) }, nil
}

// SetArrivals says that the words of barriers on a device are v now, and returns where they
// are. The device must be idle.
func SetArrivals(ordinal int, v uint32) []uintptr {
	on, err := usePermuter(ordinal)
	if err != nil {
		return nil
	}
	var at []uintptr
	for _, p := range on.memory.device.pieces {
		p.word.Arrivals = v
		at = append(at, p.address)
	}
	return at
}

// PermuteReference is Permute by permute_byte of permute.cu.
func PermuteReference(device int, stream uintptr, p *flatten.Permutation) error {
	on, err := usePermuter(device)
	if err != nil {
		return err
	}
	f, err := on.module.Function("permute_byte")
	if err != nil {
		return err
	}
	reference := *on
	reference.resident = [launch.NumPermuteKernels]uint32{} // no barrier
	for k := range reference.functions {
		reference.functions[k][launch.TableFar] = functionHandle(f)
	}
	c := takePermuteCall()
	defer c.putBack()
	c.on, c.stream = &reference, stream
	c.options = launch.PermuteOptions{Resident: &reference.resident, Plain: true}
	if !c.tables.Plan(p, &c.options) {
		return nil
	}
	return c.run()
}
