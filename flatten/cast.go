package flatten

import (
	"encoding/binary"
	"slices"
)

// A Cast is a plan whose entries are converted while they move. The plan counts elements where
// others count bytes, so that it says the same of sides whose elements differ in size: it is
// built for what InElements makes of a layout and its entries.
type Cast struct {
	Plan  *Plan
	To    Float
	From  []Float // the type of each entry
	Rules Rules   // for To
}

// InElements returns the layout with elements of one byte. It shares the memory of l.
func (l *Layout) InElements() *Layout {
	counted := *l
	counted.DType = inElements
	return &counted
}

// inElements is the dtype of elements that are counted, not measured.
var inElements = DType{CodeUint, 8, 1}

// InElements returns the entry with elements of one byte, which has its strides in elements. They
// must be multiples of the element now.
func (e Entry) InElements() Entry {
	e.View = e.View.InElements(e.DType.ElemBytes())
	e.DType = inElements
	return e
}

// InElements returns the view with strides in elements of so many bytes.
func (v View) InElements(elemBytes int64) View {
	v.Strides = slices.Clone(v.Strides)
	for i := range v.Strides {
		v.Strides[i] /= elemBytes
	}
	return v
}

// ApplyCast is Apply for a plan that converts: element by element. It is what the GPU kernels are
// compared with.
func ApplyCast(dst, src [][]byte, c *Cast) {
	for i := range c.Plan.Segments {
		s := &c.Plan.Segments[i]
		c.apply(dst[s.Batch], src[s.Entry], c.From[s.Entry], s, s.Axes, s.Dst, s.Src)
	}
}

// apply converts the elements from dst[to] and src[from] on for every turn of axes.
func (c *Cast) apply(dst, src []byte, source Float, s *Segment, axes []Axis, to, from int64) {
	if len(axes) == 0 {
		for e := range s.Bytes {
			store(dst, to+e, c.To, Convert(c.To, source, load(src, from+e, source), c.Rules))
		}
		return
	}
	for i := range axes[0].N {
		c.apply(dst, src, source, s, axes[1:], to+i*axes[0].DstStep, from+i*axes[0].SrcStep)
	}
}

// load returns the code of an element.
func load(memory []byte, element int64, f Float) uint64 {
	var code [8]byte
	copy(code[:], memory[element*f.Bytes():(element+1)*f.Bytes()])
	return binary.LittleEndian.Uint64(code[:])
}

// store writes the code of an element.
func store(memory []byte, element int64, f Float, code uint64) {
	var bytes [8]byte
	binary.LittleEndian.PutUint64(bytes[:], code)
	copy(memory[element*f.Bytes():(element+1)*f.Bytes()], bytes[:])
}
