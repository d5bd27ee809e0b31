package flatten

import "strconv"

// checkOuts makes sure that there is an output per batch, of the right shape,
// and that no two elements of one share a byte. nil stands for contiguous outputs.
func (p *Plan) checkOuts(outs []View) error {
	if outs != nil && len(outs) != p.Layout.Batches {
		return jobError(strconv.Itoa(len(outs))+" outputs", strconv.Itoa(p.Layout.Batches)+", one per batch")
	}
	for b := range outs {
		if err := p.checkOut(b, outs[b]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) checkOut(b int, out View) error {
	l := p.Layout
	if !l.outFits(b, out.Shape) {
		return &ShapeError{Key: -1, Batch: b, Got: shapeText(out.Shape), Want: shapeText(l.OutShape(b))}
	}
	if got := l.badStrides(out); got != "" {
		return &ShapeError{Key: -1, Batch: b, Got: got, Want: wantStrides}
	}
	if p.nest.single(out, l.DType.ElemBytes()); !out.empty() && p.nest.overlapsItself() {
		return &OverlapError{Key: -1, Batch: b, Got: stridesText(out), Want: "elements that share no byte"}
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
