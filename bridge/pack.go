package bridge

import "github.com/goflat/goflat/flatten"

// pack turns the job into one of a single batch whose keys are all entries, batch by batch: a packed result is one
// buffer in which the outputs follow each other along dim.
func (j *job) pack() error {
	l := &j.layout
	for b, d := range l.Devices {
		if d != l.Devices[0] {
			return &flatten.DeviceError{Key: -1, Batch: b, Got: d.String(), Want: l.Devices[0].String() + " (packed=True needs one device)"}
		}
	}
	j.orderSpace = batchMajor(j.orderSpace[:0], l.NumKeys, l.Batches)
	j.order = j.orderSpace
	j.rows = reorder(j.rows[:0], l.Rows, j.order)
	j.reorderEntries()
	*l = flatten.Layout{
		NumKeys: l.NumKeys * l.Batches, Batches: 1, Dim: l.Dim, RowShape: l.RowShape, Rows: j.rows,
		DType: l.DType, Devices: l.Devices[:1],
	}
	return nil
}

// reorderEntries puts the entries, if they were listed, in the order of a packed plan.
func (j *job) reorderEntries() {
	if j.order == nil || len(j.entries) == 0 {
		return
	}
	j.spare = reorder(j.spare[:0], j.entries, j.order)
	j.entries, j.spare = j.spare, emptied(j.entries)
}

// unpacked names what is at fault as the caller knows it: in a packed plan every entry is a key of its own, and the one
// output is that of no batch.
func (j *job) unpacked(err error) error {
	if err == nil || j.order == nil {
		return err
	}
	code, m := mismatch(err)
	if m.Key < 0 {
		return &wireError{code, -1, -1, m.Got, m.Want}
	}
	slot, batches := j.slot(m.Key), int(j.c.batches)
	return &wireError{code, slot / batches, slot % batches, m.Got, m.Want}
}

// batchMajor appends the slots of a key-major grid batch by batch.
func batchMajor(order []int, keys, batches int) []int {
	for b := range batches {
		for k := range keys {
			order = append(order, k*batches+b)
		}
	}
	return order
}

// reorder appends items in the given order.
func reorder[T any](dst, items []T, order []int) []T {
	for _, from := range order {
		dst = append(dst, items[from])
	}
	return dst
}
