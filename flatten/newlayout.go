package flatten

import "strconv"

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
	err := l.checkGrid(len(entries))
	if err == nil && len(entries) > 0 {
		err = l.adopt(entries, dim)
	}
	if err == nil {
		err = l.check(entries)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
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

// adoptRows takes the rows of all entries, and which of them are legacy. An
// entry of other dims gets none; checkEntry refuses it.
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
