package flatten

import (
	"math"
	"strconv"
)

// NewLayout checks entries as torch.cat does and describes them.
//
// entries has one entry per key and batch, key-major: entry k*batches+b. keys
// are labels for messages, nil for none. dim is the dim to concatenate along; a
// negative one counts from the end. The layout keeps keys and copies the rest.
//
// Entries need one dim or more, one dtype and one row shape over the job, and
// one device per batch; else NewLayout returns a *ShapeError, *DTypeError or
// *DeviceError that names the first entry at fault. Entries of shape (0,) fit
// everywhere and add nothing, as in torch.cat. A job without batches is fine; a
// batch without keys is a ShapeError, as is one of more than 2^63-1 bytes.
func NewLayout(keys []string, batches int, entries []Entry, dim int) (*Layout, error) {
	l := &Layout{Keys: keys, NumKeys: len(keys), Batches: batches}
	if keys == nil && batches > 0 {
		l.NumKeys = len(entries) / batches
	}
	if err := l.checkGrid(len(entries)); err != nil || len(entries) == 0 {
		return l.orNil(err)
	}
	if err := l.adopt(entries, dim); err != nil {
		return nil, err
	}
	return l.orNil(l.check(entries))
}

// check makes sure that the layout and its entries agree.
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

func (l *Layout) orNil(err error) (*Layout, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

// checkGrid makes sure that n entries are one per key and batch.
func (l *Layout) checkGrid(n int) error {
	if l.Batches > 0 && l.NumKeys == 0 && n == 0 {
		return &ShapeError{Key: -1, Batch: 0, Got: "no keys", Want: "at least one key"}
	}
	if l.Batches < 0 || l.NumKeys*l.Batches != n {
		return &ShapeError{
			Key: -1, Batch: -1, Got: strconv.Itoa(n) + " entries",
			Want: strconv.Itoa(l.NumKeys) + " keys of " + strconv.Itoa(l.Batches) + " batches each",
		}
	}
	return nil
}

// adopt takes everything that the entries must share from the first that is
// not legacy, and from each entry its rows.
func (l *Layout) adopt(entries []Entry, dim int) error {
	first := firstModern(entries)
	if first < 0 {
		first, dim = 0, 0 // only (0,) entries: torch.cat then takes any dim
	}
	if err := l.adoptShape(first, entries[first].Shape, dim); err != nil {
		return err
	}
	l.DType = entries[first].DType
	l.Devices = make([]Device, l.Batches)
	for b := range l.Devices {
		l.Devices[b] = entries[b].Device
	}
	l.adoptRows(entries)
	return nil
}

// firstModern is the index of the first entry that is not of shape (0,), or -1.
func firstModern(entries []Entry) int {
	for e := range entries {
		if !legacyShape(entries[e].Shape) {
			return e
		}
	}
	return -1
}

// legacyShape reports the shape (0,), which torch.cat skips whatever the others
// are: before it had other empty tensors, that was how to write "nothing".
func legacyShape(shape []int64) bool {
	return len(shape) == 1 && shape[0] == 0
}

// adoptShape takes Dim and RowShape from the shape of entry e.
func (l *Layout) adoptShape(e int, shape []int64, dim int) error {
	n := len(shape)
	if n == 0 {
		return l.shapeError(e, "a 0-dim tensor", "at least 1 dim")
	}
	if dim < -n || dim >= n {
		want := "-" + strconv.Itoa(n) + " <= dim < " + strconv.Itoa(n)
		return l.shapeError(e, "dim "+strconv.Itoa(dim)+" for shape "+shapeText(shape), want)
	}
	l.Dim = (dim + n) % n
	l.RowShape = append(append(make([]int64, 0, n-1), shape[:l.Dim]...), shape[l.Dim+1:]...)
	return nil
}

// adoptRows takes the rows of all entries, and which of them are legacy.
func (l *Layout) adoptRows(entries []Entry) {
	l.Rows = make([]int64, len(entries))
	for e := range entries {
		shape := entries[e].Shape
		switch {
		case len(shape) == len(l.RowShape)+1:
			l.Rows[e] = shape[l.Dim]
		case legacyShape(shape):
			l.markLegacy(e)
		}
	}
}

func (l *Layout) markLegacy(e int) {
	if l.Legacy == nil {
		l.Legacy = make([]bool, len(l.Rows))
	}
	l.Legacy[e] = true
}

// checkEntry makes sure that entry e is what the layout says about it.
func (l *Layout) checkEntry(e int, entry *Entry) error {
	if !l.sameShape(e, entry.Shape) {
		return l.shapeError(e, shapeText(entry.Shape), l.wantShape(e))
	}
	if entry.DType != l.DType {
		return &DTypeError{e / l.Batches, e % l.Batches, l.Name(e / l.Batches), entry.DType.String(), l.DType.String()}
	}
	if l.Devices != nil && entry.Device != l.Devices[e%l.Batches] {
		want := l.Devices[e%l.Batches].String()
		return &DeviceError{e / l.Batches, e % l.Batches, l.Name(e / l.Batches), entry.Device.String(), want}
	}
	return l.checkView(e, entry.View)
}

// checkView makes sure that the strides of entry e fit its shape and 63 bits.
func (l *Layout) checkView(e int, v View) error {
	if v.Strides == nil {
		return nil // checkRows knows the size of contiguous entries
	}
	if _, _, ok := v.span(l.DType.ElemBytes()); !ok {
		return l.shapeError(e, "strides "+shapeText(v.Strides)+" for shape "+shapeText(v.Shape), "one per dim, within 63 bits")
	}
	return nil
}

// sameShape reports whether shape is that of entry e.
func (l *Layout) sameShape(e int, shape []int64) bool {
	if l.legacy(e) {
		return legacyShape(shape)
	}
	return l.fits(shape, l.Rows[e])
}

// fits reports whether shape is the row shape with rows put in at Dim.
func (l *Layout) fits(shape []int64, rows int64) bool {
	if len(shape) != len(l.RowShape)+1 || shape[l.Dim] != rows {
		return false
	}
	for i, n := range l.RowShape {
		if i >= l.Dim {
			i++
		}
		if shape[i] != n {
			return false
		}
	}
	return true
}

// wantShape is the shape that entry e should have, for messages: the star
// stands for rows that are free.
func (l *Layout) wantShape(e int) string {
	return extentsText(l.shape(l.Rows[e]), l.Dim)
}

// checkRows makes sure that no count is negative and that all offsets, in
// bytes and in rows, fit in 63 bits.
func (l *Layout) checkRows() error {
	if len(l.Rows) != l.NumKeys*l.Batches {
		return l.checkGrid(len(l.Rows))
	}
	if len(l.Rows) == 0 {
		return nil
	}
	left, err := l.maxRows()
	if err != nil {
		return err
	}
	for e, rows := range l.Rows {
		if uint64(rows) > uint64(left) { // also true for a negative count
			return l.shapeError(e, strconv.FormatInt(rows, 10)+" rows", "0 or more, and less than 2^63 bytes in all")
		}
		left -= rows
	}
	return nil
}

// maxRows is how many rows a job may have in all.
func (l *Layout) maxRows() (int64, error) {
	if l.DType.ElemBytes() == 0 {
		return 0, &DTypeError{Key: -1, Batch: -1, Got: l.DType.String(), Want: "at least one bit an element"}
	}
	for _, n := range l.RowShape {
		if n < 0 {
			return 0, &ShapeError{Key: -1, Batch: -1, Got: "row shape " + shapeText(l.RowShape), Want: "no negative extent"}
		}
	}
	n, ok := product(l.RowShape, l.DType.ElemBytes())
	if !ok {
		return 0, &ShapeError{Key: -1, Batch: -1, Got: "row shape " + shapeText(l.RowShape), Want: "less than 2^63 bytes a row"}
	}
	return math.MaxInt64 / max(n, 1), nil
}

// shapeError is a ShapeError about entry e.
func (l *Layout) shapeError(e int, got, want string) error {
	k, b := e/l.Batches, e%l.Batches
	return &ShapeError{Key: k, Batch: b, Name: l.Name(k), Got: got, Want: want}
}
