package flatten

import (
	"fmt"
	"strings"
)

// String is one line, such as "2 keys x 3 batches of float32, rows of (7, 7) along dim 0".
func (l *Layout) String() string {
	return fmt.Sprintf("%d keys x %d batches of %v, rows of %s along dim %d",
		l.NumKeys, l.Batches, l.DType, shapeText(l.RowShape), l.Dim)
}

// String is one line, such as
// "entry 3 -> batch 1: src 0, dst 24, 8 bytes, 2 x (src +8, dst +16)".
func (s Segment) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "entry %d -> batch %d: src %d, dst %d, %d bytes", s.Entry, s.Batch, s.Src, s.Dst, s.Bytes)
	for _, a := range s.Axes {
		fmt.Fprintf(&text, ", %d x (src %+d, dst %+d)", a.N, a.SrcStep, a.DstStep)
	}
	return text.String()
}

// String is the layout's line and one line for each segment.
func (p *Plan) String() string {
	var text strings.Builder
	fmt.Fprintln(&text, p.Layout)
	for _, s := range p.Segments {
		fmt.Fprintln(&text, s)
	}
	return text.String()
}
