package flatten

import (
	"math"
	"slices"
	"strconv"
)

// check makes sure that the layout is sound and that its entries are what it says.
func (l *Layout) check(entries []Entry) error {
	if err := l.checkRows(); err != nil {
		return err
	}
	if err := l.checkGrid(len(entries)); err != nil {
		return err
	}
	for e := range entries {
		if err := l.checkEntry(e, &entries[e]); err != nil {
			return err
		}
	}
	return nil
}

// checkGrid makes sure that n entries are one per key and batch.
func (l *Layout) checkGrid(n int) error {
	if l.Batches > 0 && l.NumKeys == 0 && n == 0 {
		return &ShapeError{Key: -1, Batch: 0, Got: "no keys", Want: "at least one key"}
	}
	if l.Batches < 0 || l.NumKeys*l.Batches != n {
		want := strconv.Itoa(l.NumKeys) + " keys of " + strconv.Itoa(l.Batches) + " batches each"
		return jobError(strconv.Itoa(n)+" entries", want)
	}
	return nil
}

// checkRows makes sure that no count is negative and that all offsets, in
// bytes and in rows, fit in 63 bits.
func (l *Layout) checkRows() error {
	if err := l.checkGrid(len(l.Rows)); err != nil || len(l.Rows) == 0 {
		return err
	}
	if err := l.checkShared(); err != nil {
		return err
	}
	left := math.MaxInt64 / max(l.RowBytes(), 1)
	for e, rows := range l.Rows {
		if uint64(rows) > uint64(left) { // also true for a negative count
			return l.shapeError(e, strconv.FormatInt(rows, 10)+" rows", "0 or more, and less than 2^63 bytes in all")
		}
		left -= rows
	}
	return nil
}

// checkShared makes sure that a row has a size and that each list has its length.
func (l *Layout) checkShared() error {
	if l.DType.ElemBytes() == 0 {
		return &DTypeError{Key: -1, Batch: -1, Got: l.DType.String(), Want: "at least one bit an element"}
	}
	if l.Dim < 0 || l.Dim > len(l.RowShape) {
		return jobError("dim "+strconv.Itoa(l.Dim), "0 <= dim <= "+strconv.Itoa(len(l.RowShape)))
	}
	if slices.ContainsFunc(l.RowShape, func(n int64) bool { return n < 0 }) {
		return jobError("row shape "+shapeText(l.RowShape), "no negative extent")
	}
	if _, ok := product(l.RowShape, l.DType.ElemBytes()); !ok {
		return jobError("row shape "+shapeText(l.RowShape), "less than 2^63 bytes a row")
	}
	if l.Legacy != nil && len(l.Legacy) != len(l.Rows) {
		return jobError(strconv.Itoa(len(l.Legacy))+" legacy marks", strconv.Itoa(len(l.Rows))+", one per entry, or none")
	}
	if l.Devices != nil && len(l.Devices) != l.Batches {
		return jobError(strconv.Itoa(len(l.Devices))+" devices", strconv.Itoa(l.Batches)+", one per batch, or none")
	}
	return nil
}

// checkEntry makes sure that entry e is what the layout says about it.
func (l *Layout) checkEntry(e int, entry *Entry) error {
	if !l.sameShape(e, entry.Shape) {
		return l.shapeError(e, shapeText(entry.Shape), l.wantShape(e, entry.Shape))
	}
	k, b := e/l.Batches, e%l.Batches
	if entry.DType != l.DType {
		return &DTypeError{k, b, l.Name(k), entry.DType.String(), l.DType.String()}
	}
	if l.Devices != nil && entry.Device != l.Devices[b] {
		return &DeviceError{k, b, l.Name(k), entry.Device.String(), l.Devices[b].String()}
	}
	if got := l.badStrides(entry.View); got != "" {
		return l.shapeError(e, got, wantStrides)
	}
	return nil
}

const wantStrides = "one per dim, within 63 bits"

// badStrides says which strides do not fit their shape or 63 bits, "" if they do.
func (l *Layout) badStrides(v View) string {
	if v.Strides == nil {
		return "" // checkRows knows the size of contiguous views
	}
	if _, _, ok := v.span(l.DType.ElemBytes()); ok {
		return ""
	}
	return stridesText(v)
}

func stridesText(v View) string {
	return "strides " + shapeText(v.Strides) + " for shape " + shapeText(v.Shape)
}

// sameShape reports whether shape is that of entry e.
func (l *Layout) sameShape(e int, shape []int64) bool {
	if l.legacy(e) {
		return legacyShape(shape) && l.Rows[e] == 0
	}
	return l.fits(shape, l.Rows[e])
}

// fits reports whether shape is the row shape with rows put in at Dim.
func (l *Layout) fits(shape []int64, rows int64) bool {
	d := l.Dim
	return len(shape) == len(l.RowShape)+1 && shape[d] == rows &&
		slices.Equal(shape[:d], l.RowShape[:d]) && slices.Equal(shape[d+1:], l.RowShape[d:])
}

// wantShape is the shape that entry e should have instead, for messages. A star
// stands for the rows unless they are what is wrong.
func (l *Layout) wantShape(e int, shape []int64) string {
	free := l.Dim
	if len(shape) == len(l.RowShape)+1 && shape[l.Dim] != l.Rows[e] {
		free = -1
	}
	return extentsText(l.shape(l.Rows[e]), free)
}

// shapeError is a ShapeError about entry e.
func (l *Layout) shapeError(e int, got, want string) error {
	k, b := e/l.Batches, e%l.Batches
	return &ShapeError{k, b, l.Name(k), got, want}
}

// jobError is a ShapeError about no entry in particular.
func jobError(got, want string) error {
	return &ShapeError{Key: -1, Batch: -1, Got: got, Want: want}
}
