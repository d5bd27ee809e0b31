package bridge

import (
	"fmt"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// run does a step whose memory has been allocated.
func (c *consumption) run(step int, stream uintptr) error {
	s := &c.plan.Steps[step]
	if c.device.Type != flatten.DeviceCUDA {
		c.plan.Run(step, space{c}, 0)
		return nil
	}
	if s.Kind == flatten.Permute {
		return deviceError(gpu.Permute(int(c.device.Index), stream, s.Perm))
	}
	return deviceError(gpu.Moves(int(c.device.Index), stream, c.absolute(s.Moves)))
}

// absolute resolves the bases of moves.
func (c *consumption) absolute(moves []flatten.Move) []flatten.Move {
	resolved := make([]flatten.Move, len(moves))
	for i, m := range moves {
		m.Dst, m.Src = c.resolve(m.Dst), c.resolve(m.Src)
		resolved[i] = m
	}
	return resolved
}

func (c *consumption) resolve(a flatten.Addr) flatten.Addr {
	if a.Base == flatten.Absolute {
		return a
	}
	base, ok := c.bases[a.Base]
	if !ok {
		panic(fmt.Sprintf("base %d is used before it was set", a.Base))
	}
	return flatten.Addr{Base: flatten.Absolute, Off: base + a.Off}
}

// space is the memory of a job on the CPU.
type space struct{ c *consumption }

// At returns n bytes of it.
func (s space) At(a flatten.Addr, n int64) []byte {
	return bytesAt(s.c.resolve(a).Off, n)
}
