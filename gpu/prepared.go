package gpu

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
)

// Prepared is a gather whose launches have been made, for entries and outputs that stay where they are.
type Prepared struct {
	on     *loaded
	starts []start // with tables of their own
}

// Prepare makes the launches that [Gather] would enqueue, and enqueues none. dst and src are as there; they may be used
// for as long as the Prepared is.
func Prepare(device int, plan *flatten.Plan, dst, src []uintptr) (*Prepared, error) {
	if err := checkAddresses("prepare", plan, len(dst), len(src)); err != nil {
		return nil, err
	}
	on, err := use(device)
	if err != nil {
		return nil, err
	}
	return prepareOn(on, device, plan, dst, src)
}

func prepareOn(on *loaded, device int, plan *flatten.Plan, dst, src []uintptr) (*Prepared, error) {
	p := &Prepared{on: on}
	g := takeGather(on, 0)
	defer g.putBack()
	job := launch.Job{
		Plan: plan, Dst: dst, Src: src,
		Device:          flatten.Device{Type: flatten.DeviceCUDA, Index: int32(device)},
		Multiprocessors: on.multiprocessors,
	}
	err := g.tables.Run(&job, func(l *launch.Launch) error {
		own := on.start(l)
		own.table = slices.Clone(own.table)
		p.starts = append(p.starts, own)
		return nil
	})
	return p, err
}

// Launch enqueues the gather on a stream of its device: what [Gather] promises holds, and nothing is computed.
func (p *Prepared) Launch(stream uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(p.on.context)
	if err != nil {
		return err
	}
	for i := range p.starts {
		if err = p.starts[i].enqueue(stream); err != nil {
			err = fmt.Errorf("launch %d of %d: %w", i+1, len(p.starts), err)
			break
		}
	}
	return s.leave(err)
}
