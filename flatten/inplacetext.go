package flatten

import (
	"fmt"
	"strings"
)

// String is a headline, where the outputs lie, and a line or more for each step.
func (p *InPlace) String() string {
	var text strings.Builder
	fmt.Fprintln(&text, p.Layout)
	fmt.Fprintf(&text, "%s: growth %d, tables %d, scratch %d, reserved growth %d, %d rows move\n",
		p.Strategy, p.Growth, p.Tables, p.Scratch, p.ReservedGrowth, p.MovedRows)
	for b, out := range p.Outs {
		fmt.Fprintf(&text, "output %d at %v, keeps blocks %v\n", b, out, p.Under[b])
	}
	for i := range p.Steps {
		fmt.Fprintln(&text, &p.Steps[i])
	}
	return text.String()
}

// String is one line for the step and one for each move or chain.
func (s *Step) String() string {
	switch s.Kind {
	case Alloc:
		return fmt.Sprintf("alloc output %d", s.Batch)
	case AllocScratch:
		return "alloc scratch"
	case Gather:
		return "gather" + s.movesText()
	case Permute:
		return "permute " + s.Perm.String()
	case Free:
		return fmt.Sprintf("free blocks %v", s.Blocks)
	default:
		return "free scratch"
	}
}

func (s *Step) movesText() string {
	var text strings.Builder
	for i := range s.Moves {
		fmt.Fprintf(&text, "\n  %v", &s.Moves[i])
	}
	return text.String()
}

// String is one line, such as "0x1040 <- 0x1000, 32 bytes".
func (m *Move) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v <- %v, %d bytes", m.Dst, m.Src, m.Bytes)
	for _, a := range m.Axes {
		fmt.Fprintf(&text, ", %d x (src %+d, dst %+d)", a.N, a.SrcStep, a.DstStep)
	}
	return text.String()
}

// String is a line with the unit, and one for each chain: "0 <- 3 <- 1", with
// "<- (0)" behind it where the chain is closed.
func (p *Permutation) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "units of %d bytes, positions of %d from %#x", p.Unit, p.Grain, p.Origin)
	for i := range p.Ends {
		chain := p.chain(i)
		fmt.Fprintf(&text, "\n  %d", chain[0])
		for _, v := range chain[1:] {
			fmt.Fprintf(&text, " <- %d", v)
		}
		if p.Closed[i] {
			fmt.Fprintf(&text, " <- (%d)", chain[0])
		}
	}
	return text.String()
}

// String is an address, "scratch+8" or "output 2+8".
func (a Addr) String() string {
	switch a.Base {
	case Absolute:
		return fmt.Sprintf("%#x", a.Off)
	case Scratch:
		return fmt.Sprintf("scratch+%d", a.Off)
	default:
		return fmt.Sprintf("output %d+%d", a.Base, a.Off)
	}
}
