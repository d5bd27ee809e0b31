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
	j.order = batchMajor(l.NumKeys, l.Batches)
	j.rows = append(j.rows[:0], reorder(l.Rows, j.order)...)
	j.entries = reorder(j.entries, j.order)
	*l = flatten.Layout{
		NumKeys: l.NumKeys * l.Batches, Batches: 1, Dim: l.Dim, RowShape: l.RowShape, Rows: j.rows,
		Legacy: reorder(l.Legacy, j.order), DType: l.DType, Devices: l.Devices[:1],
	}
	return nil
}

// unpacked names the entry at fault as the caller knows it: in a packed plan every entry is a key of its own.
func (j *job) unpacked(err error) error {
	if err == nil || j.order == nil {
		return err
	}
	code, m := mismatch(err)
	if m.Key < 0 {
		return err
	}
	slot, batches := j.slot(m.Key), int(j.c.batches)
	return &wireError{code, slot / batches, slot % batches, m.Got, m.Want}
}

// batchMajor lists the slots of a key-major grid batch by batch.
func batchMajor(keys, batches int) []int {
	order := make([]int, 0, keys*batches)
	for b := range batches {
		for k := range keys {
			order = append(order, k*batches+b)
		}
	}
	return order
}

// reorder is items in the given order; nil where there is nothing to put in order.
func reorder[T any](items []T, order []int) []T {
	if len(items) == 0 || order == nil {
		return items
	}
	out := make([]T, len(order))
	for i, from := range order {
		out[i] = items[from]
	}
	return out
}
