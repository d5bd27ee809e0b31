package flatten

import "strconv"

// checkOuts makes sure that there is an output per batch, of the right shape,
// and that no two elements of one share a byte. nil stands for contiguous outputs.
func (p *Plan) checkOuts(outs []View) error {
	l := p.Layout
	if outs != nil && len(outs) != l.Batches {
		return &ShapeError{
			Key: -1, Batch: -1, Got: strconv.Itoa(len(outs)) + " outputs", Want: strconv.Itoa(l.Batches) + ", one per batch",
		}
	}
	for b := range outs {
		if err := l.checkOut(b, outs[b]); err != nil {
			return err
		}
		p.nest.single(outs[b], l.DType.ElemBytes())
		if !outs[b].empty() && p.nest.overlapsItself() {
			got := "strides " + shapeText(outs[b].Strides) + " for shape " + shapeText(outs[b].Shape)
			return &OverlapError{Key: -1, Batch: b, Got: got, Want: "elements that share no byte"}
		}
	}
	return nil
}

func (l *Layout) checkOut(b int, out View) error {
	if !l.outFits(b, out.Shape) {
		return &ShapeError{Key: -1, Batch: b, Got: shapeText(out.Shape), Want: shapeText(l.OutShape(b))}
	}
	if out.Strides == nil {
		return nil
	}
	if _, _, ok := out.span(l.DType.ElemBytes()); !ok {
		got := "strides " + shapeText(out.Strides) + " for shape " + shapeText(out.Shape)
		return &ShapeError{Key: -1, Batch: b, Got: got, Want: "one per dim, within 63 bits"}
	}
	return nil
}

// outFits reports whether shape is that of output b.
func (l *Layout) outFits(b int, shape []int64) bool {
	if l.legacyBatch(b) {
		return legacyShape(shape)
	}
	return l.fits(shape, l.BatchRows(b))
}
